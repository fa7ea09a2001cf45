"""What steering takes from an answer, whatever the behavior: likelihood, variety, and an end to repetition.

With nll the mean -ln p of an answer's tokens under the unsteered model (which sees the plain prompt), and 0 marking
the unsteered answers to the same prompts:

    damage = max( (nll - nll₀) / ln R,  (repetition - repetition₀) / P,  (distinct₂₀ - distinct₂) / D,  0 )

where R, P and D are `Limits`: each part is 1 at its limit, and the worst one counts. exp(nll - nll₀) is the perplexity
ratio. It falls again when text degenerates into loops, which are likely; repetition and distinct-2 see those.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

REPETITION_TOKENS = 4
COLLAPSE = 2.0
"""The damage from which an answer is taken to have fallen apart: twice each limit (the ratio squared)."""


@dataclass(frozen=True)
class Limits:
    """What an answer may lose before it counts as damaged."""

    perplexity_ratio: float = 4.0
    repetition: float = 0.15
    distinct_2: float = 0.15

    def __post_init__(self) -> None:
        if not self.perplexity_ratio > 1:
            raise ValueError(f"perplexity_ratio: expected a number above 1, found {self.perplexity_ratio}")
        for field in ("repetition", "distinct_2"):
            if not 0 < getattr(self, field) <= 1:
                raise ValueError(f"{field}: expected a share above 0, at most 1, found {getattr(self, field)}")


def distinct_n(text: str, n: int) -> float:
    """Different n-grams of words as a share of all (Li et al., arXiv 1510.03055); 1 for shorter texts."""
    return _distinct(text.lower().split(), n)


def repetition(token_ids: Sequence[int], n: int = REPETITION_TOKENS) -> float:
    """Share of n-grams of tokens that the answer had before (seq-rep-n; Welleck et al., arXiv 1908.04319)."""
    return 1.0 - _distinct(token_ids, n)


def damage(*, extra_nll: Floats, extra_repetition: Floats, lost_distinct_2: Floats, limits: Limits) -> Floats:
    """The damage of answers by how they differ from unsteered ones, elementwise."""
    parts = (
        extra_nll / math.log(limits.perplexity_ratio),
        extra_repetition / limits.repetition,
        lost_distinct_2 / limits.distinct_2,
    )
    return np.maximum(np.maximum.reduce(parts), 0.0)


def _distinct(items: Sequence[object], n: int) -> float:
    grams = Counter(zip(*(items[start:] for start in range(n)), strict=False))
    total = grams.total()
    return len(grams) / total if total else 1.0
