"""How alike a tenant's vectors are, block by block: a blend of two that point the same way counts one of them twice,
and two opposites cancel out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from personas import vector_files
from personas.models import SteeringVector
from steerguard.vectors import SteeringVector as VectorContent
from steerguard.vectors import VectorError, read_vector

ALIKE = 0.9
"""The absolute cosine above which two vectors are said to be the same or opposite."""
MAX_COMPARED = 60


@dataclass(frozen=True)
class Comparison:
    """Another vector, and the cosine with it at each block that both have."""

    other: SteeringVector
    cosines: Mapping[int, float]

    @property
    def strongest(self) -> float:
        """The cosine that is furthest from 0."""
        return max(self.cosines.values(), key=abs)

    @property
    def warning(self) -> str:
        """`duplicate`, `opposite`, or nothing."""
        if abs(self.strongest) <= ALIKE:
            return ""
        return "duplicate" if self.strongest > 0 else "opposite"


def content_of(vector: SteeringVector) -> VectorContent | None:
    """Its numbers, or None when its file is gone or broken."""
    try:
        return read_vector(vector_files.path_of(vector.digest))
    except (OSError, VectorError):
        return None


def compare(content: VectorContent, others: Iterable[SteeringVector]) -> list[Comparison]:
    """The vectors that share a block with `content`, most alike or opposed first. Reads their files."""
    found = []
    for other in others:
        numbers = content_of(other) if set(other.layers) & set(content.layers) else None
        if numbers is not None and numbers.hidden_size == content.hidden_size:
            found.append(Comparison(other, cosines(content, numbers)))
    return sorted(found, key=lambda one: (-abs(one.strongest), one.other.name, one.other.digest))


def cosines(one: VectorContent, two: VectorContent) -> dict[int, float]:
    """The cosine of the angle between two vectors at each block that both have."""
    shared = [block for block in one.layers if block in two.layers]
    return {block: _cosine(one.layers[block], two.layers[block]) for block in shared}


def _cosine(one: np.ndarray, two: np.ndarray) -> float:
    """In float64, and scaled first, so that neither tiny nor huge vectors lose it."""
    wide = [row.astype(np.float64) / np.abs(row).max() for row in (one, two)]
    value = float(wide[0] @ wide[1] / (np.linalg.norm(wide[0]) * np.linalg.norm(wide[1])))
    return max(-1.0, min(1.0, value))
