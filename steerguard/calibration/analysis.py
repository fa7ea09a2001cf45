"""From answers to zones and a recommendation: means over prompts, and a bootstrap over them for the intervals.

Prompts are resampled whole: in each resample the same prompts stand for every condition, so that a hard prompt doesn't
pass for an effect. The same answers and seed give the same result, bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steerguard.calibration.ask import Said
from steerguard.calibration.damage import COLLAPSE, Floats, Limits, damage, distinct_n, repetition
from steerguard.calibration.measures import Measure
from steerguard.calibration.result import (
    Baseline,
    Bound,
    Estimate,
    Figures,
    PointResult,
    Recommendation,
    Window,
    Zone,
)
from steerguard.calibration.sweep import LayerSet, Point

RESAMPLES = 1_000
LOW, HIGH = 0.025, 0.975
SAMPLE_CHARS = 400


@dataclass(frozen=True)
class Answers:
    """The answers to all prompts under one condition, with their scores by measure."""

    said: Sequence[Said]
    scores: Mapping[str, Sequence[float]]


class Analysis:
    """Judges conditions against the unsteered answers to the same prompts. The first measure decides."""

    def __init__(self, unsteered: Answers, measures: Sequence[Measure], *, limits: Limits, seed: int) -> None:
        prompts = len(unsteered.said)
        drawn = np.random.default_rng(seed).integers(0, prompts, (RESAMPLES, prompts))
        # Row 0 is every prompt once: its means are the values, the others' spread is their interval.
        self._rows = np.concatenate([np.arange(prompts)[None], drawn])
        self._measures = measures
        self._limits = limits
        self._unsteered = unsteered
        self._plain = self._means(unsteered)

    def baseline(self, answers: Answers) -> Baseline:
        return Baseline(self.figures(answers), _estimate(self._effect(answers)), _sample(answers))

    def figures(self, answers: Answers) -> Figures:
        means = self._means(answers)
        return Figures(
            behavior={measure.name: _estimate(means[measure.name]) for measure in self._measures},
            perplexity_ratio=_estimate(np.exp(means["nll"] - self._plain["nll"])),
            distinct_2=_estimate(means["distinct_2"]),
            repetition=_estimate(means["repetition"]),
            damage=_estimate(self._damage(answers)),
        )

    def unsteered_perplexity(self) -> Estimate:
        return _estimate(np.exp(self._plain["nll"]))

    def point(self, point: Point, steered: Answers, random: Answers) -> PointResult:
        effect, advantage = self._effect(steered), self._effect(steered) - self._effect(random)
        effect_found, advantage_found = _estimate(effect), _estimate(advantage)
        return PointResult(
            layers=point.layers,
            dose=point.dose,
            alpha=point.alpha,
            zone=_zone(float(self._damage(steered)[0])),
            steered=self.figures(steered),
            random=self.figures(random),
            effect=effect_found,
            advantage=advantage_found,
            is_effective=min(effect_found.low, advantage_found.low) > 0,
            sample=_sample(steered),
        )

    def window(self, results: Sequence[PointResult], steered: Sequence[Answers]) -> Window:
        """The zones of one set of blocks, from its points by ascending dose."""
        doses = [result.dose for result in results]
        damages = [self._damage(answers) for answers in steered]
        alpha_per_dose = results[0].alpha / results[0].dose
        effective = next((result for result in results if result.is_effective), None)
        return Window(
            layers=results[0].layers,
            alpha_per_dose=alpha_per_dose,
            effective_from=(
                Bound(effective.dose, effective.dose, effective.dose, effective.alpha) if effective else None
            ),
            green_to=_bound(_crossings(doses, damages, 1.0), alpha_per_dose),
            red_from=_bound(_crossings(doses, damages, COLLAPSE), alpha_per_dose),
        )

    def recommend(self, results: Sequence[PointResult], steered: Sequence[Answers]) -> Recommendation:
        """The least damaging of the green points whose effect is within a standard error of the best one's."""
        green = [index for index, result in enumerate(results) if result.zone == "green"]
        chosen = [index for index in green if results[index].is_effective]
        if not chosen:
            reason = "no strength tried moved the behavior beyond chance and random directions "
            reason += "without damage" if green else "and none was without damage"
            return Recommendation((), None, None, None, reason)
        effects = {index: self._effect(steered[index]) for index in chosen}
        best = max(chosen, key=lambda index: (effects[index][0], -results[index].dose))
        enough = effects[best][0] - float(effects[best][1:].std())
        index = min(
            (index for index in chosen if effects[index][0] >= enough),
            key=lambda index: (results[index].steered.damage.value, results[index].dose),
        )
        result = results[index]
        reason = "least damage among green strengths within one standard error of the strongest effect"
        return Recommendation(result.layers, result.alpha, result.dose, result.effect, reason)

    def _means(self, answers: Answers) -> dict[str, Floats]:
        """Each quantity's mean over the prompts of each resample: [1 + RESAMPLES]."""
        values: dict[str, Sequence[float]] = {
            "nll": [said.nll for said in answers.said],
            "distinct_2": [distinct_n(said.text, 2) for said in answers.said],
            "repetition": [repetition(said.answer_ids) for said in answers.said],
            **answers.scores,
        }
        return {name: np.asarray(value, np.float64)[self._rows].mean(axis=1) for name, value in values.items()}

    def _effect(self, answers: Answers) -> Floats:
        measure = self._measures[0]
        return measure.sign * (self._means(answers)[measure.name] - self._plain[measure.name])

    def _damage(self, answers: Answers) -> Floats:
        means = self._means(answers)
        return damage(
            extra_nll=means["nll"] - self._plain["nll"],
            extra_repetition=means["repetition"] - self._plain["repetition"],
            lost_distinct_2=self._plain["distinct_2"] - means["distinct_2"],
            limits=self._limits,
        )


def by_layer_set(points: Sequence[Point]) -> dict[LayerSet, list[int]]:
    """Indexes of the points of each set of blocks, in order."""
    found: dict[LayerSet, list[int]] = {}
    for index, point in enumerate(points):
        found.setdefault(point.layers, []).append(index)
    return found


def _crossings(doses: Sequence[float], damages: Sequence[Floats], level: float) -> Floats:
    """The dose at which each resample's damage first exceeds `level`, linear between points; infinite if never.

    Without a dose there is no damage: the line begins at (0, 0).
    """
    found = np.full(damages[0].shape, np.inf)
    dose_before, before = 0.0, np.zeros(damages[0].shape)
    for dose, now in zip(doses, damages, strict=True):
        crosses = np.isinf(found) & (now > level)
        with np.errstate(divide="ignore", invalid="ignore"):
            at = dose_before + (dose - dose_before) * (level - before) / (now - before)
        found = np.where(crosses, at, found)
        dose_before, before = dose, now
    return found


def _bound(doses: Floats, alpha_per_dose: float) -> Bound:
    # "lower" and "higher" give values that occur: there is nothing between a dose and infinity.
    low = float(np.quantile(doses[1:], LOW, method="lower"))
    high = float(np.quantile(doses[1:], HIGH, method="higher"))
    dose = _finite(float(doses[0]))
    return Bound(dose, _finite(low), _finite(high), None if dose is None else dose * alpha_per_dose)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _estimate(values: npt.NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(values[1:], [LOW, HIGH])
    return Estimate(float(values[0]), float(low), float(high))


def _zone(found: float) -> Zone:
    return "green" if found <= 1.0 else "amber" if found <= COLLAPSE else "red"


def _sample(answers: Answers) -> str:
    return answers.said[0].text[:SAMPLE_CHARS]
