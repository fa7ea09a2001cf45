import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open

from steerguard.vectors import (
    MAX_HEADER_BYTES,
    MAX_VECTOR_BYTES,
    SteeringVector,
    VectorError,
    read_vector,
    read_vectors_dir,
    write_vector,
)

texts = st.text('aZ09 "\\\n\0{}α\u2028🦜', max_size=20)


@st.composite
def vectors(draw: st.DrawFn) -> SteeringVector:
    hidden_size = draw(st.integers(1, 24))
    values = hnp.arrays(
        np.float32,
        hidden_size,
        elements=st.floats(allow_nan=False, allow_infinity=False, width=32),
    ).filter(np.any)
    layers = draw(st.dictionaries(st.integers(0, 1023), values, min_size=1, max_size=5))
    return SteeringVector(
        layers=layers,
        hidden_size=hidden_size,
        base_model=draw(texts),
        name=draw(texts),
        provenance=draw(st.dictionaries(texts, texts, max_size=4)),
    )


def small() -> SteeringVector:
    layers = {10: np.arange(1, 5, dtype=np.float32), 2: np.ones(4, np.float32)}
    return SteeringVector(layers, hidden_size=4, base_model="demo", name="cheerful", provenance={"by": "test"})


def encode(header: object, data: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def metadata(**changed: object) -> dict[str, object]:
    return {
        "format": "steerguard.vector.v1",
        "hook_point": "block_output",
        "hidden_size": "2",
        **changed,
    }


def tensor(start: int = 0, dtype: str = "F32", shape: tuple[int, ...] = (2,), size: int = 8) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + size]}


TWO = struct.pack("<2f", 1, 2)


@given(vectors())
def test_reading_what_was_written_gives_the_same_vector(vector: SteeringVector):
    data = write_vector(vector)
    again = read_vector(data)
    assert again == vector
    assert write_vector(again) == data
    assert all(again.layers[block].tobytes() == row.tobytes() for block, row in vector.layers.items())


def test_the_safetensors_library_reads_the_file(tmp_path):
    path = tmp_path / "v.safetensors"
    path.write_bytes(write_vector(small()))
    with safe_open(path, "numpy") as file:
        assert sorted(file.keys()) == ["block.10", "block.2"]
        assert file.get_tensor("block.10").tolist() == [1, 2, 3, 4]
        assert file.metadata() == {
            "format": "steerguard.vector.v1",
            "hook_point": "block_output",
            "base_model": "demo",
            "hidden_size": "4",
            "name": "cheerful",
            "provenance": '{"by": "test"}',
        }
    assert read_vector(path) == small()
    assert read_vector(str(path)) == small()


@given(vectors(), st.data())
@settings(max_examples=60)
def test_a_truncated_file_is_refused(vector: SteeringVector, data: st.DataObject):
    whole = write_vector(vector)
    with pytest.raises(VectorError):
        read_vector(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(vectors(), st.binary(min_size=1, max_size=16))
@settings(max_examples=60)
def test_trailing_bytes_are_refused(vector: SteeringVector, tail: bytes):
    with pytest.raises(VectorError):
        read_vector(write_vector(vector) + tail)


@given(st.binary(max_size=400))
def test_noise_is_refused(data: bytes):
    with pytest.raises(VectorError):
        read_vector(data)


@given(vectors(), st.data())
def test_a_flipped_bit_gives_a_refusal_or_a_valid_vector(vector: SteeringVector, data: st.DataObject):
    damaged = bytearray(write_vector(vector))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        survivor = read_vector(bytes(damaged))
    except VectorError:
        return
    assert all(np.isfinite(row).all() and row.any() for row in survivor.layers.values())


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "file"),
        (struct.pack("<Q", 2**63) + b"{}", "header length"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b" " * MAX_HEADER_BYTES * 2, "header length"),
        (struct.pack("<Q", 300) + b"{}", "header length"),
        (encode(b"\xff\xfe"), "header"),
        (encode(b"[" * 100_000), "header"),
        (encode([1]), "header"),
        (encode({}), "metadata"),
        (encode({"__metadata__": metadata(format="gguf")}), "metadata format"),
        (encode({"__metadata__": metadata(hook_point="mlp")}), "metadata hook_point"),
        (encode({"__metadata__": metadata(hidden_size="-2")}), "metadata hidden_size"),
        (encode({"__metadata__": metadata(hidden_size="9" * 5000)}), "metadata hidden_size"),
        (encode({"__metadata__": metadata(provenance="[]")}), "metadata provenance"),
        (
            encode({"__metadata__": metadata(provenance='{"a": 1}'), "block.0": tensor()}, TWO),
            "provenance 'a'",
        ),
        (encode({"__metadata__": metadata()}), "layers"),
        (encode({"__metadata__": metadata(), "direction.0": tensor()}, TWO), "tensor name"),
        (encode({"__metadata__": metadata(), "block.00": tensor()}, TWO), "tensor name"),
        (encode({"__metadata__": metadata(), "block.-1": tensor()}, TWO), "tensor name"),
        (encode({"__metadata__": metadata(), "block.9999": tensor()}, TWO), "block index"),
        (encode({"__metadata__": metadata(), "block.0": tensor(dtype="F16", size=4)}, TWO[:4]), "block.0"),
        (encode({"__metadata__": metadata(), "block.0": tensor(dtype="I32")}, TWO), "block.0"),
        (encode({"__metadata__": metadata(), "block.0": tensor(shape=(1, 2))}, TWO), "block 0"),
        (encode({"__metadata__": metadata(hidden_size="3"), "block.0": tensor()}, TWO), "block 0"),
        (encode({"__metadata__": metadata(), "block.0": tensor(shape=(3,))}, TWO), "file"),
        (encode({"__metadata__": metadata(), "block.0": tensor(), "block.1": tensor()}, TWO), "file"),
        (encode({"__metadata__": metadata(), "block.0": tensor(start=8)}, TWO * 2), "file"),
        (encode({"__metadata__": metadata(), "block.0": tensor()}, struct.pack("<2f", 1, np.nan)), "block 0"),
        (encode({"__metadata__": metadata(), "block.0": tensor()}, b"\0" * 8), "block 0"),
        (b"\0" * (MAX_VECTOR_BYTES + 1), "file"),
    ],
)
def test_a_hostile_file_is_refused_by_name(data: bytes, field: str):
    with pytest.raises(VectorError) as caught:
        read_vector(data)
    assert caught.value.field == field


def test_the_same_block_twice_is_refused():
    entry = json.dumps(tensor())
    header = f'{{"__metadata__": {json.dumps(metadata())}, "block.0": {entry}, "block.0": {entry}}}'
    with pytest.raises(VectorError, match=r"'block\.0' twice"):
        read_vector(encode(header.encode(), TWO))


def test_a_vector_too_big_for_a_file_is_refused():
    wide = np.ones(65_536, np.float32)
    with pytest.raises(VectorError, match="file"):
        write_vector(SteeringVector({block: wide for block in range(65)}, 65_536))


def test_a_folder_gives_its_vectors_by_name(tmp_path):
    (tmp_path / "cheerful.safetensors").write_bytes(write_vector(small()))
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / ".partial.safetensors").write_bytes(b"")
    assert read_vectors_dir(tmp_path) == {"cheerful": small()}
    (tmp_path / "broken.safetensors").write_bytes(b"")
    with pytest.raises(VectorError, match=r"broken\.safetensors"):
        read_vectors_dir(tmp_path)
