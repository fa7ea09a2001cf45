import hashlib
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerguard.vectors import SteeringVector, VectorError


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_the_digest_is_the_documented_hash_of_the_numbers():
    vector = SteeringVector(layers={14: row(1, 2, 3), 3: row(-1, 0, 0.5)}, hidden_size=3)
    expected = hashlib.sha256(b"steerguard.vector.v1" + struct.pack("<I", 3))
    expected.update(struct.pack("<I3f", 3, -1, 0, 0.5))
    expected.update(struct.pack("<I3f", 14, 1, 2, 3))
    assert vector.digest == expected.hexdigest()


def test_names_and_provenance_are_not_part_of_the_identity():
    plain = SteeringVector(layers={3: row(1, 2)}, hidden_size=2)
    named = SteeringVector({3: row(1, 2)}, 2, base_model="m", name="cheerful", provenance={"source": "here"})
    assert named.digest == plain.digest
    assert named != plain


def test_the_block_is_part_of_the_identity():
    assert SteeringVector({3: row(1, 2)}, 2).digest != SteeringVector({4: row(1, 2)}, 2).digest


@given(st.permutations([0, 5, 9, 29]))
def test_the_order_the_blocks_came_in_does_not_matter(blocks: list[int]):
    vector = SteeringVector({block: row(block, 1) for block in blocks}, 2)
    assert list(vector.layers) == [0, 5, 9, 29]
    assert vector.digest == SteeringVector({block: row(block, 1) for block in sorted(blocks)}, 2).digest


def test_norms_do_not_overflow():
    vector = SteeringVector({0: row(3, 4), 1: row(3e38, 3e38)}, 2)
    assert vector.norms[0] == 5
    assert vector.norms[1] == pytest.approx(4.2426e38, rel=1e-4)


def test_a_vector_can_not_be_changed_through_the_array_it_was_made_from():
    source = row(1, 2)
    vector = SteeringVector({0: source}, 2)
    source[0] = 7
    assert vector.layers[0][0] == 1
    with pytest.raises(ValueError):
        vector.layers[0][0] = 7
    with pytest.raises(TypeError):
        vector.layers[1] = source  # type: ignore[index]


def test_a_vector_survives_the_trip_to_another_process():
    vector = SteeringVector({0: row(1, 2)}, 2, name="cheerful", provenance={"a": "b"})
    assert pickle.loads(pickle.dumps(vector)) == vector


@pytest.mark.parametrize(
    ("layers", "hidden_size", "field", "found"),
    [
        ({}, 2, "layers", "none"),
        ({0: row(1, 2, 3)}, 2, "block 0", "shape [3]"),
        ({0: row(1, 2).reshape(1, 2)}, 2, "block 0", "shape [1, 2]"),
        ({0: np.array([1.0, 2.0])}, 2, "block 0", "an array of float64"),
        ({0: [1.0, 2.0]}, 2, "block 0", "list"),
        ({4: row(1, np.nan)}, 2, "block 4", "1 NaN or infinite"),
        ({4: row(np.inf, np.inf)}, 2, "block 4", "2 NaN or infinite"),
        ({4: row(0, 0)}, 2, "block 4", "only zeros"),
        ({-1: row(1, 2)}, 2, "block index", "-1"),
        ({1024: row(1, 2)}, 2, "block index", "1024"),
        ({"0": row(1, 2)}, 2, "block index", "'0'"),
        ({0: row(1, 2)}, 0, "hidden_size", "0"),
        ({0: row(1, 2)}, True, "hidden_size", "True"),
    ],
)
def test_what_is_wrong_is_named(layers, hidden_size, field, found):
    with pytest.raises(VectorError) as caught:
        SteeringVector(layers=layers, hidden_size=hidden_size)
    assert caught.value.field == field
    assert caught.value.found == found


@pytest.mark.parametrize(
    "described",
    [
        {"name": "n" * 301},
        {"name": None},
        {"base_model": "\ud800"},
        {"provenance": {"key": 3}},
        {"provenance": {f"key {n}": "" for n in range(65)}},
        {"provenance": {"key": "v" * 2001}},
        {"provenance": ["key"]},
    ],
)
def test_descriptions_are_bounded_text(described):
    with pytest.raises(VectorError):
        SteeringVector({0: row(1, 2)}, 2, **described)
