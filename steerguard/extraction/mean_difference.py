"""The mean-difference vector: where answers that show a behavior are, minus where their opposites are.

v = mean over pairs of (mean over positive answer's tokens of h) - the same of the negative; "difference of
means" or CAA (Rimsky et al., arXiv 2312.06681), over all response tokens rather than the last. Not
normalized: α = 1 moves an average opposite answer to where an average answer with the behavior is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from steerguard.extraction.activations import LanguageModel, collect_activations
from steerguard.extraction.pairs import Pair, pairs_digest
from steerguard.vectors import SteeringVector


@dataclass(frozen=True)
class Extraction:
    """A vector and what it takes to say how strong it is on the model it was made on."""

    vector: SteeringVector
    residual_norms: dict[int, float]
    """Mean L2 norm of each block's output over the answers' tokens."""

    def dose(self, alpha: float, layer: int) -> float:
        """‖α·v‖ / ‖h‖ at a block."""
        return abs(alpha) * self.vector.norms[layer] / self.residual_norms[layer]

    def alpha_for_dose(self, dose: float, layer: int) -> float:
        """The strength at which the vector makes up `dose` of the residual stream at a block."""
        return dose * self.residual_norms[layer] / self.vector.norms[layer]


def extract_vector(
    language_model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    layers: Sequence[int],
    name: str = "",
    on_progress: Callable[[int], None] | None = None,
) -> Extraction:
    """The mean-difference vector of `pairs` at every block of `layers`, from one pass over the answers.

    `on_progress` gets the number of answers (two a pair) that each batch finished. Raises ValueError for a
    block the model hasn't got, and VectorError when the two sides don't differ there.
    """
    exchanges = [(pair.prompt, pair.positive) for pair in pairs] + [(pair.prompt, pair.negative) for pair in pairs]
    activations = collect_activations(language_model, exchanges, layers=layers, on_progress=on_progress)
    sides = activations.means.reshape(2, len(pairs), len(activations.layers), -1).astype(np.float64)
    difference = (sides[0] - sides[1]).mean(axis=0)
    residual_norms = {
        layer: float(norm)
        for layer, norm in zip(activations.layers, activations.norms.mean(axis=0, dtype=np.float64), strict=True)
    }
    vector = SteeringVector(
        layers={layer: difference[column].astype(np.float32) for column, layer in enumerate(activations.layers)},
        hidden_size=language_model.hidden_size,
        base_model=language_model.name,
        name=name,
        provenance={
            "method": "mean_difference",
            "tokens": "response",
            "norm": "raw",
            "pairs": str(len(pairs)),
            "pairs_sha256": pairs_digest(pairs),
            **{f"residual_norm.{layer}": f"{norm:.2f}" for layer, norm in residual_norms.items()},
        },
    )
    return Extraction(vector=vector, residual_norms=residual_norms)
