"""How well a vector tells answers apart that it wasn't made from, block by block.

A block whose vector can't separate held-out answers has learned its pairs, not the behavior.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steerguard.extraction.methods import Direction
from steerguard.extraction.pairs import Pair
from steerguard.vectors.vector import FloatArray

MIN_HELD_OUT = 2


@dataclass(frozen=True)
class Separability:
    """Held-out answers of both sides, projected on a vector."""

    accuracy: float
    """Share of answers on the right side of the midpoint between the two sides' means in training."""
    cohens_d: float
    """Distance of the two means in pooled standard deviations; infinite where neither side varies."""
    auc: float
    """Chance that a positive answer projects higher than a negative one (area under the ROC curve)."""


def split_pairs(pairs: Sequence[Pair], held_out: float, seed: int) -> tuple[list[int], list[int]]:
    """Indexes of the pairs to learn from, and of those held out: a share of about `held_out`, chosen by `seed`.

    Pairs with the same prompt stay together while that leaves something on both sides. Fewer than two held-out
    pairs would say nothing: then none are. Raises ValueError unless 0 ≤ held_out < 1.
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out: expected a share from 0 to below 1, found {held_out}")
    wanted = round(held_out * len(pairs))
    everything = list(range(len(pairs)))
    if wanted < MIN_HELD_OUT or len(pairs) - wanted < 1:
        return everything, []
    groups: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.prompt, []).append(index)
    shuffled = list(groups.values())
    np.random.default_rng(seed).shuffle(shuffled)
    chosen: list[int] = []
    for group in shuffled:
        if len(chosen) + len(group) <= wanted:
            chosen += group
    if len(chosen) < MIN_HELD_OUT:
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:wanted].tolist()
    held = set(chosen)
    return [index for index in everything if index not in held], sorted(held)


def measure_separability(
    direction: Direction,
    *,
    learned: tuple[FloatArray, FloatArray],
    held_out: tuple[FloatArray, FloatArray],
) -> Separability:
    """What `direction` [hidden_size] does on held-out activations; each pair is (positive, negative), [n, hidden]."""
    from sklearn.metrics import roc_auc_score

    unit = direction / np.linalg.norm(direction)
    midpoint = sum(float((side @ unit).mean()) for side in learned) / 2
    positive, negative = (side @ unit for side in held_out)
    right = np.concatenate([positive > midpoint, negative <= midpoint])
    sides = np.repeat([1, 0], [len(positive), len(negative)])
    return Separability(
        accuracy=float(right.mean()),
        cohens_d=_cohens_d(positive, negative),
        auc=float(roc_auc_score(sides, np.concatenate([positive, negative]))),
    )


def _cohens_d(positive: npt.NDArray[np.floating], negative: npt.NDArray[np.floating]) -> float:
    pooled = np.sqrt((positive.var(ddof=1) + negative.var(ddof=1)) / 2)
    distance = positive.mean() - negative.mean()
    if pooled == 0:
        return float(np.copysign(np.inf, distance)) if distance else 0.0
    return float(distance / pooled)
