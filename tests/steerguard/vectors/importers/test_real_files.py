"""Files that the tools wrote themselves (tests/steerguard/vectors/files/make.py) import onto the right blocks."""

from pathlib import Path

import numpy as np
import pytest

from steerguard.vectors.importers import ImportRequest, import_vector, read_source

FILES = Path(__file__).parents[1] / "files"


@pytest.fixture(scope="module")
def measured() -> np.ndarray:
    """[pairs, blocks, hidden_size]: positive minus negative after each block, by forward hooks."""
    differences: np.ndarray = np.load(FILES / "measured.npz")["differences"]
    return differences


def principal_component(differences: np.ndarray) -> np.ndarray:
    """repeng's method, of [pairs, hidden_size]."""
    component: np.ndarray = np.linalg.svd(differences - differences.mean(axis=0))[2][0]
    return component


@pytest.mark.parametrize(
    ("name", "expected_format", "blocks", "after_norm"),
    [
        ("repeng-0.4.0.gguf", "repeng", [1, 2, 3], True),
        ("steering-vectors-0.12.2.pt", "steering-vectors", [0, 1, 2, 3], False),
        ("hidden-directions-0.1.6.pt", "hidden-directions", [0, 1, 2, 3], False),
    ],
)
def test_a_tools_own_file_lands_where_it_was_measured(
    name: str, expected_format: str, blocks: list[int], after_norm: bool, measured: np.ndarray
) -> None:
    _, num_layers, hidden_size = measured.shape
    by_block = [measured[:, block] for block in range(num_layers)]
    expected = [principal_component(one) if expected_format == "repeng" else one.mean(axis=0) for one in by_block]
    imported = import_vector(read_source(FILES / name), ImportRequest(hidden_size=hidden_size, num_layers=num_layers))
    assert (imported.format, list(imported.vector.layers)) == (expected_format, blocks)
    for block, row in imported.vector.layers.items():
        if after_norm and block == num_layers - 1:
            continue
        likeness = [abs(row @ other) / (np.linalg.norm(row) * np.linalg.norm(other)) for other in expected]
        assert int(np.argmax(likeness)) == block
        assert likeness[block] == pytest.approx(1, abs=1e-4)
