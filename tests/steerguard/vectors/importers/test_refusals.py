"""Files that are no vectors, by mistake or on purpose: each is refused by the part that is wrong, at no great cost."""

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from steerguard.vectors import SteeringVector, VectorError, write_vector
from steerguard.vectors.importers import ImportRequest, Source, Unanswered, import_vector
from tests.steerguard.vectors.importers import tools

SIZE, LAYERS = 8, 4
REQUEST = ImportRequest(hidden_size=SIZE, num_layers=LAYERS)
ONE = {1: np.ones(SIZE, np.float32)}


def refusal(data: bytes, **said: object) -> VectorError:
    with pytest.raises(VectorError) as caught:
        import_vector(Source(data), ImportRequest(hidden_size=SIZE, num_layers=LAYERS, **said))  # type: ignore[arg-type]
    return caught.value


# --- what every format can get wrong

WRITERS: dict[str, tuple[Callable[[dict[int, np.ndarray]], bytes], dict[str, object]]] = {
    "repeng": (tools.repeng, {}),
    "llama.cpp": (tools.llama_cpp, {}),
    "easysteer": (tools.easysteer, {}),
    "steering-vectors": (tools.steering_vectors, {}),
    "hidden-directions": (lambda rows: tools.pt_matrix(rows), {"format": "hidden-directions", "zero_rows": "skip"}),
    "cast": (tools.cast, {}),
    "npy": (lambda rows: tools.npy(tools.matrix(rows)), {"rows": "blocks", "zero_rows": "skip"}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_wrong_numbers_are_refused_in_every_format(name: str) -> None:
    write, said = WRITERS[name]
    assert import_vector(
        Source(write(ONE)),
        ImportRequest(hidden_size=SIZE, num_layers=LAYERS, **said),  # type: ignore[arg-type]
    )
    wide = refusal(write({1: np.ones(SIZE + 1, np.float32)}), **said)
    assert "hidden_size" in wide.expected
    for bad in (np.nan, np.inf, -np.inf):
        row = np.ones(SIZE, np.float32)
        row[3] = bad
        assert "finite" in refusal(write({1: row}), **said).expected
    assert refusal(write({1: np.zeros(SIZE, np.float32)}), **said)
    assert refusal(write({LAYERS + 2: np.ones(SIZE, np.float32)}), **said)


@pytest.mark.parametrize("name", WRITERS)
def test_a_truncated_file_is_refused_in_every_format(name: str) -> None:
    write, said = WRITERS[name]
    whole = write(ONE)
    for size in {1, 4, 9, len(whole) // 3, len(whole) // 2, len(whole) - 40}:
        assert refusal(whole[:size], **said)


@pytest.mark.parametrize(
    ("data", "field", "found"),
    [
        (b"", "file", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "file", "Git LFS pointer"),
        (b"\x7fELF" + b"\0" * 40, "file", "bytes 7f454c46"),
        (tools.repeng({9: np.ones(SIZE, np.float32)}), "block 9", "9"),
        (tools.repeng(ONE).replace(b"direction.1", b"direction.x"), "tensor name", "direction.x"),
        (tools.repeng({10: ONE[1]}).replace(b"direction.10", b"direction.-1"), "tensor name", "direction.-1"),
        (tools.repeng({10: ONE[1]}).replace(b"direction.10", b"direction.01"), "tensor name", "direction.01"),
        (tools.repeng({1: ONE[1], 2: ONE[1]}).replace(b"direction.2", b"direction.1"), "tensor", "twice"),
        (tools.repeng(ONE).replace(b"controlvector", b"controlVector", 1), "general.architecture", "controlVector"),
        (tools.repeng({1: ONE[1].astype(np.float64)}), "tensor 'direction.1'", "F64"),
        (tools.repeng({1: np.ones((2, 4), np.float32)}), "direction.1", "shape [4, 2]"),
        (tools.llama_cpp({0: ONE[1]}), "tensor name", "direction.0"),
        (tools.easysteer(ONE, component="attention_heads"), "controlvector.easysteer, component", "attention_heads"),
        (tools.steering_vectors(ONE, layer_type="mlp"), "layer_type", "mlp"),
        (tools.steering_vectors({-1: ONE[1]}), "layer_activations", "-1"),
        (tools.steering_vectors({}), "layer_activations", "dict"),
        (tools.pt_matrix({LAYERS: ONE[1]}), "vector, row 1", "only zeros"),
        (tools.saved(torch.ones(LAYERS + 3, SIZE)), "vector", "7"),
        (tools.saved(torch.ones(2, LAYERS, SIZE)), "vector", "shape [2, 4, 8]"),
        (tools.saved(torch.ones(LAYERS, SIZE, dtype=torch.int64)), "tensor", "int64"),
        (tools.saved(torch.ones(LAYERS, SIZE, dtype=torch.complex64)), "file", "ComplexFloatStorage"),
        (tools.saved(torch.ones(LAYERS, SIZE).to_sparse()), "file", "_rebuild_sparse_tensor"),
        (tools.saved({"a": torch.ones(SIZE), "b": torch.ones(SIZE)}), "file", "a dict with 2: 'a', 'b'"),
        (tools.saved([torch.ones(SIZE)]), "file", "list"),
        (tools.saved("text"), "file", "str"),
        (tools.saved(np.ones(SIZE, np.int32)), "array", "i4"),
        (tools.saved(np.array([{}], dtype=object)), "array", "O8"),
        (tools.npy(np.ones((LAYERS, SIZE), np.int8)), "npy dtype", "int8"),
        (tools.npy(np.ones((LAYERS, 2, SIZE), np.float32)), "npy shape", "[4, 2, 8]"),
        (tools.npy(np.array(1, np.float32)), "npy shape", "[]"),
        (tools.npy(np.array(["a"])), "npy dtype", "<U1"),
        (tools.npy(np.full((LAYERS, SIZE), 1e300)), "array, row 0", "larger ones"),
        (tools.npy(np.ones((LAYERS, SIZE), np.float32)) + b"!", "npy data", "129"),
        (b'{"directions": {"1": [1], "1": [1]}}', "file", "'1' twice"),
        (b'{"directions": {"-1": [1]}}', "directions", "'-1'"),
        (b'{"directions": {"01": [1]}}', "directions", "'01'"),
        (b'{"directions": {"1": [1]}}', "directions[1]", "1"),
        (b'{"directions": {"1": "text"}}', "directions[1]", "str"),
        (b'{"directions": []}', "directions", "list"),
        (b'{"vectors": {}}', "directions", "nothing"),
        (json.dumps({"directions": {"1": [True] * SIZE}}).encode(), "directions[1]", "bool"),
        (json.dumps({"directions": {"1": [10**400] * SIZE}}).encode(), "directions[1]", "larger ones"),
        (json.dumps({"directions": {"1": [1e300] * SIZE}}).encode(), "directions[1]", "larger ones"),
        (json.dumps({"directions": {"1": [float("nan")] * SIZE}}).encode(), "file", "NaN"),
        (b'{"a":' * 100_000, "file", "recursion"),
        (b'{"directions": 1' + b"0" * 5_000 + b"}", "file", "digit"),
        (write_vector(SteeringVector({1: np.ones(3, np.float32)}, 3)), "file", "3"),
        (write_vector(SteeringVector({LAYERS: ONE[1]}, SIZE)), f"block {LAYERS}", "4"),
    ],
)
def test_what_is_wrong_is_named(data: bytes, field: str, found: str) -> None:
    refused = refusal(data)
    assert refused.field == field
    assert found in refused.found


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"format": "gguf"}, "format"),
        ({"format": "cast"}, "file"),
        ({"format": "canonical"}, "file"),
        ({"index": "both"}, "index"),
        ({"rows": ""}, "rows"),
        ({"zero_rows": "keep"}, "zero_rows"),
        ({"layer": LAYERS}, "layer"),
        ({"layer": -1}, "layer"),
        ({"layer": True}, "layer"),
        ({"base_model": "m" * 301}, "base_model"),
    ],
)
def test_a_wrong_answer_is_named(said: dict[str, object], field: str) -> None:
    assert refusal(tools.repeng(ONE), **said).field == field


def test_persona_vectors_rows_are_counted() -> None:
    refused = refusal(tools.saved(torch.ones(LAYERS, SIZE)), format="persona-vectors")
    assert (refused.expected, refused.found) == ("5 rows, the embeddings' and one a block", "4 for 4 blocks")
    refused = refusal(tools.saved(torch.ones(LAYERS + 1, SIZE)), format="hidden-directions")
    assert refused.found == "5, as many as persona-vectors writes"


# --- on purpose


def gguf_head(tensors: int = 1, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def info(name: bytes = b"direction.1", shape: tuple[int, ...] = (SIZE,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def archive(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, data in records.items():
            writer.writestr(name, data)
    return file.getvalue()


def with_pickle(pickled: bytes, storage: bytes = bytes(4 * SIZE)) -> bytes:
    return archive(
        {
            "archive/data.pkl": pickled,
            "archive/byteorder": b"little",
            "archive/data/0": storage,
            "archive/version": b"3",
        }
    )


def tensor_pickle(values: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """What torch.save writes for a float32 tensor, of a storage that is said to have so many values."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            if isinstance(value, torch.UntypedStorage):
                return ("storage", torch.FloatStorage, "0", "cpu", values)
            return None

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (torch.UntypedStorage(0), 0, shape, strides, False, {})

    file = io.BytesIO()
    Pickler(file, protocol=2).dump(Tensor())
    return file.getvalue()


def npy_head(literal: bytes) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(literal)) + literal


HOSTILE = {
    "tensor count": gguf_head(tensors=2**63),
    "key count": gguf_head(keys=2**63),
    "version": gguf_head(version=1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 1, 0),
    "length of a key": gguf_head(0, 1) + struct.pack("<Q", 2**63),
    "length of a text": gguf_head(0, 1) + text(b"a") + struct.pack("<IQ", 8, 2**62),
    "length of an array": gguf_head(0, 1) + text(b"a") + struct.pack("<IIQ", 9, 4, 2**62),
    "length of an array of texts": gguf_head(0, 1) + text(b"a") + struct.pack("<IIQ", 9, 8, 2**62),
    "array of arrays": gguf_head(0, 1) + text(b"a") + struct.pack("<IIQ", 9, 9, 1) * 50_000,
    "type of a value": gguf_head(0, 1) + text(b"a") + struct.pack("<I", 99),
    "the same key twice": gguf_head(0, 2) + (text(b"a") + struct.pack("<IB", 0, 1)) * 2,
    "alignment": gguf_head(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 0),
    "alignment of a float": gguf_head(0, 1) + text(b"general.alignment") + struct.pack("<If", 6, 32.0),
    "dimensions": gguf_head() + text(b"direction.1") + struct.pack("<I", 2**31),
    "elements": gguf_head() + info(shape=(2**62, 2**62, 2**62)),
    "offset": gguf_head() + info(offset=2**60) + bytes(64),
    "overlap": gguf_head(2) + info() + info(b"direction.2") + bytes(128),
    "bytes after the end": gguf_head() + info() + bytes(400),
    "npy shape": npy_head(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 8)}\n"),
    "npy shape below zero": npy_head(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8)}\n"),
    "npy shape of truths": npy_head(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8)}\n") + bytes(32),
    "npy objects": npy_head(b"{'descr': '|O', 'fortran_order': False, 'shape': (4, 8)}\n") + pickle.dumps([0] * 32),
    "npy header, deep": npy_head(b"(" * 4_000),
    "npy header, long": npy_head(b" " * 60_000),
    "npy header, no literal": npy_head(b"__import__('os').abort()"),
    "zip bomb": archive({"archive/data.pkl": b"", "archive/data/0": bytes(10**8)}, zipfile.ZIP_DEFLATED),
    "many records": archive({f"archive/data/{number}": b"" for number in range(5_000)}),
    "no pickle": archive({"archive/version": b"3"}),
    "npz": archive({"arr_0.npy": tools.npy(np.ones(SIZE, np.float32))}),
    "two pickles": archive({"a/data.pkl": b"", "b/data.pkl": b""}),
    "TorchScript": archive({"a/data.pkl": b"\x80\x02N.", "a/constants.pkl": b"\x80\x02N.", "a/code/x.py": b"1"}),
    "a command": with_pickle(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."),
    "a command by another op": with_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R."),
    "a command of protocol 0": with_pickle(b"(S'true'\nios\nsystem\n."),
    "an escaped name": with_pickle(b"\x80\x02c_codecs\nenc\\x6fde\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R."),
    "a codec": with_pickle(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00utf8\x86R."),
    "a function of torch's": with_pickle(b"\x80\x02ctorch._utils\n_rebuild_wrapper_subclass\n."),
    "a view of one value": with_pickle(tensor_pickle(SIZE, (2**40, SIZE), (0, 0))),
    "a view past its storage": with_pickle(tensor_pickle(SIZE, (LAYERS, SIZE), (SIZE, 1))),
    "a storage past its record": with_pickle(tensor_pickle(LAYERS * SIZE, (LAYERS, SIZE), (SIZE, 1))),
    "lists of lists": with_pickle(b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % n * 99 + b"eq%c" % (n + 1) for n in range(6)) + b"."),  # noqa: E501
    "a list in itself": with_pickle(b"\x80\x02]q\x00h\x00a."),
    "a deep list": with_pickle(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "a memo index": with_pickle(b"\x80\x02Nr\xff\xff\xff\xff."),
    "safetensors header length": struct.pack("<Q", 2**62) + b"{}",
    "deep JSON": b"[" * 10 + b'{"a":' * 500_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_nothing_and_is_refused(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(VectorError):
            import_vector(Source(HOSTILE[name]), REQUEST)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


def test_a_real_archive_built_by_hand_is_read() -> None:
    """What the hostile ones above differ from in one thing."""
    values = np.arange(1, LAYERS * SIZE + 1, dtype=np.float32)
    pickled = tensor_pickle(LAYERS * SIZE, (LAYERS, SIZE), (SIZE, 1))
    vector = import_vector(Source(with_pickle(pickled, values.tobytes())), REQUEST).vector
    assert vector.layers[3].tolist() == values[-SIZE:].tolist()
    good = gguf_head() + info()
    good += bytes(-len(good) % 32) + np.ones(SIZE, "<f4").tobytes()
    with pytest.raises(VectorError, match="general"):
        import_vector(Source(good), ImportRequest(hidden_size=SIZE, num_layers=LAYERS, format="repeng"))


# --- by chance

SEEDS = [write(ONE) for write, _ in WRITERS.values()]
SEEDS += [
    tools.saved(np.ones(SIZE)),
    tools.saved({"dir": torch.ones(SIZE, dtype=torch.bfloat16)}),
    tools.saved(torch.ones(LAYERS + 1, SIZE)),
    write_vector(SteeringVector(ONE, SIZE)),
]


def import_or_refuse(data: bytes) -> None:
    try:
        vector = import_vector(Source(data), REQUEST).vector
    except (VectorError, Unanswered):
        return
    assert all(np.isfinite(row).all() and row.any() and row.shape == (SIZE,) for row in vector.layers.values())
    assert max(vector.layers) < LAYERS


@given(st.sampled_from(SEEDS), st.data())
@settings(max_examples=300)
def test_damage_gives_a_refusal_or_a_valid_vector(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip":
                damaged[at] = data.draw(st.integers(0, 255))
            case "cut":
                del damaged[at : at + data.draw(st.integers(1, 64))]
            case "insert":
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=16))
            case _:
                damaged[at:at] = damaged[at : at + 64]
        if not damaged:
            return
    import_or_refuse(bytes(damaged))


@given(st.sampled_from([b"GGUF\3\0\0\0", b"PK\3\4", b"\x93NUMPY\1\0", b"{", b"\x80\2", b""]), st.binary(max_size=300))
@example(b"PK\3\4", b"")
def test_noise_behind_a_magic_number_is_refused(magic: bytes, noise: bytes) -> None:
    import_or_refuse(magic + noise)


@given(st.binary(max_size=200))
def test_noise_as_a_pickle_in_a_good_archive_is_refused(noise: bytes) -> None:
    import_or_refuse(with_pickle(b"\x80\x02" + noise))
