"""What an import says of a file: its format, its numbers to the bit, its provenance, and what is left to say."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerguard.vectors import SteeringVector, VectorError, write_vector
from steerguard.vectors.importers import Imported, ImportRequest, Source, Unanswered, import_vector, read_source
from tests.steerguard.vectors.importers import tools

SIZE, LAYERS = 8, 4


def rows(*numbers: int, seed: int = 0) -> dict[int, np.ndarray]:
    random = np.random.default_rng(seed)
    return {number: random.normal(size=SIZE).astype(np.float32) for number in numbers}


def imported(data: bytes, **said: object) -> Imported:
    return import_vector(Source(data, "calm.bin"), ImportRequest(hidden_size=SIZE, num_layers=LAYERS, **said))  # type: ignore[arg-type]


def assert_same(layers: Mapping[int, np.ndarray], expected: Mapping[int, np.ndarray]) -> None:
    assert {block: row.tobytes() for block, row in layers.items()} == {
        block: row.tobytes() for block, row in expected.items()
    }


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (tools.repeng(rows(1, 3)), "repeng"),
        (tools.easysteer(rows(1, 3)), "easysteer"),
        (tools.easysteer(rows(1, 3), component=None), "easysteer"),
        (tools.easysteer_before_2026(rows(1, 3)), "easysteer"),
        (tools.steering_vectors(rows(1, 3)), "steering-vectors"),
        (tools.cast(rows(1, 3)), "cast"),
        (write_vector(SteeringVector(rows(1, 3), SIZE)), "canonical"),
    ],
)
def test_numbers_come_through_to_the_bit(data: bytes, name: str) -> None:
    result = imported(data)
    assert (result.format, list(result.vector.layers)) == (name, [1, 3])
    assert_same(result.vector.layers, rows(1, 3))
    assert result.vector.digest == SteeringVector(rows(1, 3), SIZE).digest


def test_provenance_says_where_it_came_from_and_is_not_what_it_is() -> None:
    data = tools.easysteer(rows(1, 3))
    result = imported(data, base_model="tiny")
    assert dict(result.vector.provenance) == {
        "source_format": "easysteer",
        "source_sha256": hashlib.sha256(data).hexdigest(),
        "source_file": "calm.bin",
        "source_model_hint": "llama",
        "source_method": "diffmean",
        "convention": "direction.N is what block N puts out",
        "num_layers": "4",
        "norm": "raw",
    }
    assert (result.vector.name, result.vector.base_model) == ("calm", "tiny")
    assert result.vector.digest == imported(tools.repeng(rows(1, 3))).vector.digest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_unit_norms_are_known_as_such(dtype: torch.dtype) -> None:
    directions = {block: row / np.linalg.norm(row) for block, row in rows(0, 1, 2, 3).items()}
    result = imported(tools.pt_matrix(directions, dtype))
    assert result.vector.provenance["norm"] == "unit"
    doubled = imported(tools.pt_matrix({block: 2 * row for block, row in directions.items()}, dtype))
    assert doubled.vector.provenance["norm"] == "raw"


def test_bfloat16_is_widened_exactly() -> None:
    tensor = torch.from_numpy(tools.matrix(rows(0, 1, 2, 3))).bfloat16()
    result = imported(tools.saved(tensor))
    assert result.format == "hidden-directions"
    assert_same(result.vector.layers, dict(enumerate(tensor.float().numpy())))


def test_float64_is_rounded_and_said_so() -> None:
    wide = np.random.default_rng(1).normal(size=(LAYERS, SIZE))
    for data in (tools.npy(wide), tools.npy(np.asfortranarray(wide)), tools.npy(wide.astype(">f8"))):
        result = imported(data)
        assert_same(result.vector.layers, dict(enumerate(wide.astype(np.float32))))
        assert "float64 values were rounded to float32" in result.warnings


def test_what_torch_saves_of_numpy_arrays_is_read() -> None:
    row = rows(2)[2]
    assert_same(imported(tools.saved(row), layer=2).vector.layers, {2: row})
    assert_same(imported(tools.saved(row.astype(np.float64)), layer=2).vector.layers, {2: row})
    assert_same(imported(tools.saved({"dir": row, "layer": 2}), layer=2, format="hotwire").vector.layers, {2: row})


def test_what_people_do_with_tensors_does_not_matter() -> None:
    row = torch.from_numpy(rows(2)[2])
    for tensor in (
        torch.nn.Parameter(row),
        row.reshape(1, SIZE),
        torch.stack([row, row], dim=1)[:, 0],  # a view with strides
    ):
        assert_same(imported(tools.saved(tensor), layer=2).vector.layers, {2: row.numpy()})


@pytest.mark.parametrize(
    ("data", "said", "field", "choices"),
    [
        (tools.npy(rows(0)[0]), {}, "layer", "a 0-based block, 0 to 3"),
        (tools.npy(tools.matrix(rows(0))), {}, "layer", "a 0-based block, 0 to 3"),
        (tools.saved(torch.ones(SIZE)), {}, "layer", "a 0-based block, 0 to 3"),
        (tools.saved(torch.ones(SIZE)), {"format": "hotwire"}, "layer", "a 0-based block, 0 to 3"),
        (tools.npy(np.ones((3, SIZE), np.float32)), {}, "rows", "blocks or hidden_states"),
        (tools.saved(torch.ones(3, SIZE)), {}, "format", "hidden-directions or persona-vectors"),
        (tools.saved({1: torch.ones(SIZE)}), {}, "format", "steering-vectors"),
    ],
)
def test_what_the_file_leaves_open_is_asked(data: bytes, said: dict[str, object], field: str, choices: str) -> None:
    with pytest.raises(Unanswered) as asked:
        imported(data, **said)
    assert (asked.value.field, asked.value.choices) == (field, choices)


def test_a_gguf_without_a_trace_of_its_tool_is_asked_about() -> None:
    traceless = tools.repeng(rows(1)).replace(b"controlvector.layer_count", b"controlvector.layer-count")
    with pytest.raises(Unanswered) as asked:
        imported(traceless)
    assert (asked.value.field, asked.value.choices) == ("format", "repeng or llama.cpp or easysteer")
    assert list(imported(traceless, format="repeng").vector.layers) == [1]
    assert list(imported(traceless, format="llama.cpp").vector.layers) == [0]


def test_the_model_has_to_be_known_for_a_foreign_file_only() -> None:
    foreign, own = tools.repeng(rows(1)), write_vector(SteeringVector(rows(1), SIZE))
    for request, field in ((ImportRequest(), "hidden_size"), (ImportRequest(hidden_size=SIZE), "num_layers")):
        with pytest.raises(Unanswered) as asked:
            import_vector(Source(foreign), request)
        assert asked.value.field == field
        assert import_vector(Source(own), request).format == "canonical"


def test_an_answer_is_taken() -> None:
    three = np.ones((3, SIZE), np.float32)
    assert list(imported(tools.npy(three), rows="blocks").vector.layers) == [0, 1, 2]
    assert list(imported(tools.saved(torch.from_numpy(three)), format="hidden-directions").vector.layers) == [0, 1, 2]
    assert list(imported(tools.saved({1: torch.ones(SIZE)}), format="steering_vectors").vector.layers) == [1]
    assert list(imported(tools.saved(torch.ones(1, SIZE)), format="hidden-directions").vector.layers) == [0]


def test_rows_of_zeros_are_left_out_when_asked() -> None:
    sparse = tools.pt_matrix(rows(1, 3))
    with pytest.raises(VectorError, match="row 0: expected a direction"):
        imported(sparse)
    result = imported(sparse, zero_rows="skip")
    assert_same(result.vector.layers, rows(1, 3))
    assert "rows of zeros left out: 0, 2" in result.warnings


def test_a_canonical_file_is_taken_as_it_is() -> None:
    own = SteeringVector(rows(1), SIZE, base_model="tiny", name="warm", provenance={"method": "hand"})
    assert imported(write_vector(own)).vector == own
    again = imported(write_vector(own), base_model="other", name="hot")
    assert (again.vector.name, again.vector.base_model) == ("hot", "other")
    assert again.warnings == ("the file says it was made for tiny",)


def test_a_file_of_its_own_layers_takes_no_other() -> None:
    assert list(imported(tools.repeng(rows(2)), layer=2).vector.layers) == [2]
    for data, layer in ((tools.repeng(rows(2)), 1), (tools.repeng(rows(1, 2)), 1)):
        with pytest.raises(VectorError, match="layer: expected none"):
            imported(data, layer=layer)


def test_files_are_read_whole_and_links_are_not_followed(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.npy", tmp_path / "link.npy", tmp_path / "pipe"
    real.write_bytes(tools.npy(rows(0)[0]))
    assert read_source(real).data == real.read_bytes()
    link.symlink_to(real)
    os.mkfifo(pipe)
    for path, found in ((link, "a symbolic link"), (tmp_path, "a folder"), (pipe, "a pipe")):
        with pytest.raises(VectorError, match=found):
            read_source(path)
    sparse = tmp_path / "huge"
    with sparse.open("wb") as file:
        file.truncate(10 * 1024**3)
    with pytest.raises(VectorError, match="at most 25165824 bytes"):
        read_source(sparse)


def test_a_plain_pickle_is_named_and_not_loaded() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("it ran",))

    legacy = io.BytesIO()
    torch.save(torch.ones(SIZE), legacy, _use_new_zipfile_serialization=False)
    for data in (pickle.dumps(Bomb()), pickle.dumps(rows(1)), legacy.getvalue()):
        with pytest.raises(VectorError, match="plain pickle"):
            imported(data)
    with pytest.raises(VectorError, match="asks for"):
        imported(tools.saved(Bomb()))


def test_the_library_needs_torch_for_pt_files_only() -> None:
    """In a process of its own, whose torch can't be imported."""
    script = """
import sys
sys.modules["torch"] = None
import io, numpy
import steerguard.vectors, steerguard.vectors.exporters
from steerguard.vectors.importers import ImportRequest, Source, import_vector
from steerguard.__main__ import main
request = ImportRequest(hidden_size=2, num_layers=3, layer=1)
npy = io.BytesIO()
numpy.save(npy, numpy.ones(2, numpy.float32))
assert list(import_vector(Source(npy.getvalue()), request).vector.layers) == [1]
try:
    import_vector(Source(sys.stdin.buffer.read()), request)
except ValueError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], input=tools.saved(torch.ones(2)), capture_output=True, check=True
    )
    assert b"expected PyTorch to be installed" in done.stdout
