"""From pairs to a vector: activations, a direction for each block, and how well it separates held-out pairs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from steerguard.extraction.activations import AnswerActivations, LanguageModel, collect_activations
from steerguard.extraction.forward import Tokens
from steerguard.extraction.methods import Method, find_direction
from steerguard.extraction.pairs import Pair, pairs_digest
from steerguard.extraction.progress import ShouldStop
from steerguard.extraction.separability import Separability, measure_separability, split_pairs
from steerguard.vectors import SteeringVector, VectorError

HELD_OUT = 0.2
MAX_NORMS_IN_PROVENANCE = 48
"""A vector's provenance has 64 entries: one of more blocks leaves its residual norms to the report."""


@dataclass(frozen=True)
class Extraction:
    """A vector and what it takes to say how good and how strong it is on the model it was made on."""

    vector: SteeringVector
    residual_norms: Mapping[int, float]
    """Mean L2 norm of each block's output over the tokens read, of all answers."""
    separability: Mapping[int, Separability]
    """By block, on the held-out pairs; empty when there are none."""
    learned_pairs: int
    held_out_pairs: int

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
    method: Method = "mean_difference",
    tokens: Tokens = "response",
    held_out: float = HELD_OUT,
    seed: int = 0,
    name: str = "",
    made_from: Mapping[str, str] | None = None,
    work: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> Extraction:
    """The vector of `pairs` at every block of `layers` (0-based), from one pass over the answers.

    It is made from the pairs that aren't held out; `held_out` of 0 uses all of them and measures nothing. `work`,
    `on_progress` (answers, two a pair) and `should_stop` are those of `collect_activations`; `made_from` is added
    to the vector's provenance. Raises as that does, VectorError when the two sides don't differ at a block, and
    ValueError for a held-out share or a method that there isn't.
    """
    learned, held = split_pairs(pairs, held_out, seed)
    exchanges = [(pair.prompt, pair.positive) for pair in pairs] + [(pair.prompt, pair.negative) for pair in pairs]
    activations = collect_activations(
        language_model,
        exchanges,
        layers=layers,
        tokens=tokens,
        work=work,
        on_progress=on_progress,
        should_stop=should_stop,
    )
    rows = {}
    separability = {}
    for column, layer in enumerate(activations.layers):
        positive, negative = np.split(activations.means[column], 2)
        direction = find_direction(method, positive[learned], negative[learned], seed=seed)
        if not direction.any():
            raise VectorError(f"block {layer}", "two sides that differ", "the same activations on both")
        rows[layer] = direction.astype(np.float32)
        if held:
            separability[layer] = measure_separability(
                direction,
                learned=(positive[learned], negative[learned]),
                held_out=(positive[held], negative[held]),
            )
    residual_norms = _residual_norms(activations)
    vector = SteeringVector(
        layers=rows,
        hidden_size=language_model.hidden_size,
        base_model=language_model.name,
        name=name,
        provenance={
            "method": method,
            "tokens": tokens,
            "norm": "raw",
            "pairs": str(len(learned)),
            "pairs_sha256": pairs_digest(pairs),
            "held_out_pairs": str(len(held)),
            "seed": str(seed),
            "transformers": version("transformers"),
            **(made_from or {}),
            **_separability_entry(separability),
            **_residual_norm_entries(residual_norms),
        },
    )
    return Extraction(
        vector=vector,
        residual_norms=residual_norms,
        separability=separability,
        learned_pairs=len(learned),
        held_out_pairs=len(held),
    )


def _residual_norms(activations: AnswerActivations) -> dict[int, float]:
    means = activations.norms.mean(axis=1, dtype=np.float64)
    return {layer: float(norm) for layer, norm in zip(activations.layers, means, strict=True)}


def _residual_norm_entries(norms: Mapping[int, float]) -> dict[str, str]:
    if len(norms) > MAX_NORMS_IN_PROVENANCE:
        return {}
    return {f"residual_norm.{layer}": f"{norm:.2f}" for layer, norm in norms.items()}


def _separability_entry(separability: Mapping[int, Separability]) -> dict[str, str]:
    """Held-out accuracy by block, short enough for the provenance of a vector of any depth."""
    if not separability:
        return {}
    accuracies = {str(layer): round(found.accuracy, 2) for layer, found in separability.items()}
    return {"held_out_accuracy": json.dumps(accuracies, separators=(",", ":"))}
