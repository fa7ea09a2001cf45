"""What is exported and imported again has the same numbers, and other tools' own readers read it."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steerguard.vectors import SteeringVector, VectorError, read_vector
from steerguard.vectors.exporters import EXPORTS
from steerguard.vectors.importers import ImportRequest, Source, import_vector

NUM_LAYERS = 40


@st.composite
def vectors(draw: st.DrawFn, first_block: int = 0) -> SteeringVector:
    hidden_size = draw(st.integers(1, 40))
    values = hnp.arrays(
        np.float32, hidden_size, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
    ).filter(np.any)
    layers = draw(st.dictionaries(st.integers(first_block, NUM_LAYERS - 1), values, min_size=1, max_size=6))
    return SteeringVector(layers, hidden_size, draw(st.sampled_from(["", "tiny", "µ/模型"])), "calm")


@pytest.mark.parametrize("name", EXPORTS)
@given(data=st.data())
def test_import_of_an_export_is_exact(name: str, data: st.DataObject) -> None:
    vector = data.draw(vectors(first_block=1 if name == "llama.cpp" else 0))
    _, write = EXPORTS[name]
    request = ImportRequest(hidden_size=vector.hidden_size, num_layers=NUM_LAYERS)
    again = import_vector(Source(write(vector)), request)
    assert again.vector.digest == vector.digest
    assert {block: row.tobytes() for block, row in again.vector.layers.items()} == {
        block: row.tobytes() for block, row in vector.layers.items()
    }
    assert again.format == ("canonical" if name == "canonical" else "repeng")


def test_the_gguf_package_reads_what_was_written(tmp_path: Path) -> None:
    rows = {1: np.arange(1, 6, dtype=np.float32), 7: -np.ones(5, np.float32)}
    path = tmp_path / "vector.gguf"
    path.write_bytes(EXPORTS["repeng"][1](SteeringVector(rows, 5, "SmolLM2")))
    reader = gguf.GGUFReader(path)
    said = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert said == {
        "general.architecture": "controlvector",
        "controlvector.model_hint": "SmolLM2",
        "controlvector.layer_count": 2,
    }
    assert {tensor.name: tensor.data.tolist() for tensor in reader.tensors} == {
        "direction.1": [1, 2, 3, 4, 5],
        "direction.7": [-1, -1, -1, -1, -1],
    }


def test_llama_cpp_gets_no_block_0() -> None:
    vector = SteeringVector({0: np.ones(2, np.float32)}, 2)
    with pytest.raises(VectorError, match="can't steer block 0"):
        EXPORTS["llama.cpp"][1](vector)
    assert EXPORTS["repeng"][1](vector)


def test_the_canonical_file_keeps_everything() -> None:
    vector = SteeringVector({3: np.ones(2, np.float32)}, 2, "tiny", "calm", {"norm": "raw"})
    assert read_vector(EXPORTS["canonical"][1](vector)) == vector
