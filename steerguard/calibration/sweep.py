"""Which strengths are tried: some sets of blocks, each at some doses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steerguard.vectors import SteeringVector

DOSES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0)
LAYER_SETS = 5
SHALLOWEST, DEEPEST = 0.25, 0.7
"""Where a vector with many blocks is tried, as a share of the model's depth: where small models were found to
be steerable."""
MAX_TOGETHER = 8
RANDOM_DIRECTIONS = 4

LayerSet = tuple[int, ...]


@dataclass(frozen=True)
class Point:
    """A strength at some blocks. `dose` is the highest ‖α·v‖ / ‖h‖ of them, as the engine counts it."""

    layers: LayerSet
    dose: float
    alpha: float


def alpha_for_dose(vector: SteeringVector, layers: LayerSet, norms: Mapping[int, float], dose: float) -> float:
    """The strength at which the strongest of `layers` gets `dose`, with ‖h‖ by block in `norms`."""
    return dose / max(vector.norms[layer] / norms[layer] for layer in layers)


def choose_layer_sets(vector: SteeringVector, num_layers: int) -> list[LayerSet]:
    """Single blocks of the vector, at most five, spread over the middle of the model; all together if they are few."""
    layers = list(vector.layers)
    if len(layers) > LAYER_SETS:
        middle = [layer for layer in layers if SHALLOWEST <= layer / num_layers <= DEEPEST] or layers
        picked = np.linspace(0, len(middle) - 1, min(LAYER_SETS, len(middle))).round().astype(int)
        layers = [middle[index] for index in picked]
    sets: list[LayerSet] = [(layer,) for layer in layers]
    if 1 < len(vector.layers) <= MAX_TOGETHER:
        sets.append(tuple(vector.layers))
    return sets


def plan_points(
    vector: SteeringVector, *, layer_sets: Sequence[LayerSet], doses: Sequence[float], norms: Mapping[int, float]
) -> list[Point]:
    """Every set of blocks at every dose, ascending. Raises ValueError for what the vector or a sweep can't have."""
    if not layer_sets:
        raise ValueError("layers: expected at least one set of blocks, found none")
    if not doses or any(not 0 < dose < float("inf") for dose in doses) or len(set(doses)) != len(doses):
        raise ValueError(f"doses: expected different numbers above 0, found {list(doses)}")
    for layers in layer_sets:
        missing = [layer for layer in layers if layer not in vector.layers]
        if missing or not layers:
            raise ValueError(f"layers: expected blocks that the vector has ({_listed(vector)}), found {missing}")
    return [
        Point(layers, dose, alpha_for_dose(vector, layers, norms, dose))
        for layers in dict.fromkeys(tuple(sorted(set(layers))) for layers in layer_sets)
        for dose in sorted(doses)
    ]


def random_directions(vector: SteeringVector, *, seed: int, count: int = RANDOM_DIRECTIONS) -> list[SteeringVector]:
    """Vectors of the same norm at each block, in directions that mean nothing: what strength alone does."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rows = {}
        for layer, norm in vector.norms.items():
            row = generator.standard_normal(vector.hidden_size)
            rows[layer] = (row * (norm / np.linalg.norm(row))).astype(np.float32)
        found.append(SteeringVector(rows, vector.hidden_size, base_model=vector.base_model, name="random direction"))
    return found


def _listed(vector: SteeringVector) -> str:
    return ", ".join(map(str, vector.layers))
