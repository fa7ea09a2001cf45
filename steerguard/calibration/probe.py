"""A measure of behavior from pairs: how much an answer looks, to the unsteered model, like those that show it.

A logistic regression on the mean activation of an answer at one block. It is learned from some of the pairs, its block
chosen by cross-validation among those, and its accuracy told on the rest. Answers are read anew, without steering and
without what brought them about, so a vector can't pass by moving the very numbers that are measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from steerguard.calibration.measures import Exchange, Measure
from steerguard.extraction.activations import LanguageModel, collect_activations
from steerguard.extraction.pairs import Pair
from steerguard.extraction.separability import split_pairs

HELD_OUT = 0.3
MIN_PAIRS = 6
FOLDS = 4
SHALLOWEST, DEEPEST = 0.3, 0.7
CANDIDATES = 5


@dataclass(frozen=True)
class Probe:
    """A reader of behavior at one block of the unsteered model."""

    language_model: LanguageModel
    layer: int
    classifier: Any
    """A scikit-learn pipeline: standardization and logistic regression."""
    accuracy: float
    """On the held-out pairs' answers."""
    held_out_answers: int

    def score(self, exchanges: Sequence[Exchange]) -> list[float]:
        """The probability, 0 to 1, that each answer shows the behavior; 0 for an empty one."""
        scores = [0.0] * len(exchanges)
        filled = [index for index, (_, text) in enumerate(exchanges) if text.strip()]
        if filled:
            read = _read(self.language_model, [exchanges[index] for index in filled], [self.layer])[0]
            for index, probability in zip(filled, self.classifier.predict_proba(read)[:, 1], strict=True):
                scores[index] = float(probability)
        return scores

    def as_measure(self) -> Measure:
        return Measure(
            name="probe",
            better="higher",
            unit="probability that the unsteered model's activations give, 0 to 1",
            source=f"logistic regression at block {self.layer}, accuracy {self.accuracy:.2f} on "
            f"{self.held_out_answers} held-out answers",
            score=self.score,
        )


def train_probe(language_model: LanguageModel, pairs: Sequence[Pair], *, seed: int = 0) -> Probe:
    """Raises ValueError for fewer than six pairs."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(pairs) < MIN_PAIRS:
        raise ValueError(f"pairs: expected at least {MIN_PAIRS} to train a probe on, found {len(pairs)}")
    learned, held = split_pairs(pairs, HELD_OUT, seed)
    depths = np.linspace(SHALLOWEST, DEEPEST, CANDIDATES) * (language_model.num_blocks - 1)
    layers = sorted({int(layer) for layer in depths.round()})
    exchanges = [(pair.prompt, pair.positive) for pair in pairs] + [(pair.prompt, pair.negative) for pair in pairs]
    activations = _read(language_model, exchanges, layers)
    sides = np.repeat([1, 0], len(pairs))
    train, test = (np.array([*indexes, *(index + len(pairs) for index in indexes)]) for indexes in (learned, held))
    groups = np.array([pair.prompt for pair in pairs] * 2)[train]
    # Both answers of a question fall into one fold, and both sides into each.
    folds = StratifiedGroupKFold(n_splits=min(FOLDS, len(set(groups))), shuffle=True, random_state=seed)

    def classifier() -> Any:
        return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))

    def agreement(column: int) -> float:
        scores = cross_val_score(classifier(), activations[column][train], sides[train], groups=groups, cv=folds)
        return float(scores.mean())

    # The middle-most of equally good blocks.
    best = max(range(len(layers)), key=lambda column: (agreement(column), -abs(column - (len(layers) - 1) / 2)))
    fitted = classifier().fit(activations[best][train], sides[train])
    accuracy = float(fitted.score(activations[best][test], sides[test]))
    return Probe(language_model, layers[best], fitted, accuracy, len(test))


def _read(
    language_model: LanguageModel, exchanges: Sequence[Exchange], layers: Sequence[int]
) -> npt.NDArray[np.float64]:
    """[layers, answers, hidden_size]."""
    return collect_activations(language_model, exchanges, layers=layers).means.astype(np.float64)
