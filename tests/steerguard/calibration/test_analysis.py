"""Judging answers whose effect and damage are known by construction."""

import math
from typing import Any

import numpy as np
import pytest

from steerguard.calibration.analysis import Analysis, Answers
from steerguard.calibration.ask import Said
from steerguard.calibration.damage import Limits
from steerguard.calibration.measures import Measure
from steerguard.calibration.sweep import Point

PROMPTS = 40
MEASURE = Measure("charm", "higher", "points", "made up", lambda exchanges: [0.0] * len(exchanges))
LIMITS = Limits(perplexity_ratio=math.e, repetition=0.5, distinct_2=0.5)  # damage is extra nll
TEXT = "all of these words differ from one another"


def answers(charm: float, nll: float, *, spread: float = 0.1, seed: int = 0) -> Answers:
    """Answers to all prompts with these means, to the last digit."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(PROMPTS) * spread
    noise -= noise.mean()
    said = [Said(TEXT, (1, 2, 3), nll + float(one)) for one in noise]
    return Answers(said, {"charm": [charm + float(one) for one in noise]})


def analysis(measure: Measure = MEASURE) -> Analysis:
    return Analysis(answers(0.0, 2.0), [measure], limits=LIMITS, seed=0)


def judged(found: Analysis, rows):
    """(layers, dose, charm, extra nll) -> results and answers; random directions do nothing."""
    steered = [answers(charm, 2.0 + extra, seed=index + 1) for index, (_, _, charm, extra) in enumerate(rows)]
    plain = answers(0.0, 2.0, seed=99)
    points = [Point(layers, dose, 10 * dose) for layers, dose, _, _ in rows]
    return [found.point(point, one, plain) for point, one in zip(points, steered, strict=True)], steered


def test_zones_are_bounded_where_damage_crosses_one_and_two():
    rows = [((5,), 0.1, 0.5, 0.5), ((5,), 0.2, 1.0, 1.5), ((5,), 0.4, 1.5, 3.5)]
    found = analysis()
    results, steered = judged(found, rows)
    assert [result.zone for result in results] == ["green", "amber", "red"]
    window: Any = found.window(results, steered)
    # Half-way from 0.5 to 1.5 between 0.1 and 0.2; a quarter of the way from 1.5 to 3.5 between 0.2 and 0.4.
    assert window.green_to.dose == pytest.approx(0.15)
    assert window.red_from.dose == pytest.approx(0.25)
    assert window.green_to.alpha == pytest.approx(1.5)
    assert window.green_to.low < 0.15 < window.green_to.high
    assert window.effective_from.dose == 0.1


def test_damage_beyond_what_was_tried_has_no_bound():
    found = analysis()
    results, steered = judged(found, [((5,), 0.1, 0.5, 0.1), ((5,), 0.2, 0.5, 1.4)])
    window: Any = found.window(results, steered)
    assert window.green_to.dose == pytest.approx(0.1 + 0.1 * 0.9 / 1.3)
    assert (window.red_from.dose, window.red_from.alpha, window.red_from.high) == (None, None, None)


def test_damage_at_the_smallest_dose_is_drawn_back_to_none():
    found = analysis()
    results, steered = judged(found, [((5,), 0.1, 0.5, 4.0)])
    window: Any = found.window(results, steered)
    assert (window.green_to.dose, window.red_from.dose) == (pytest.approx(0.025), pytest.approx(0.05))


def test_the_strongest_green_effect_is_recommended():
    rows = [((5,), 0.1, 0.5, 0.2), ((5,), 0.2, 2.0, 0.6), ((5,), 0.3, 9.0, 1.8), ((7,), 0.1, 1.0, 0.1)]
    found = analysis()
    results, steered = judged(found, rows)
    recommended: Any = found.recommend(results, steered)
    assert (recommended.layers, recommended.dose, recommended.alpha) == ((5,), 0.2, 2.0)
    assert recommended.effect.value == pytest.approx(2.0)
    assert recommended.effect.low < 2.0 < recommended.effect.high


def test_of_equal_effects_the_one_with_less_damage_is_recommended():
    rows = [((5,), 0.1, 1.0, 0.9), ((7,), 0.1, 1.0 - 1e-4, 0.1)]
    found = analysis()
    assert found.recommend(*judged(found, rows)).layers == (7,)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([((5,), 0.1, 0.0, 0.1)], "no strength tried moved the behavior beyond chance"),
        ([((5,), 0.1, 9.0, 1.5)], "none was without damage"),
        ([((5,), 0.1, -3.0, 0.1)], "no strength tried moved the behavior beyond chance"),
    ],
)
def test_nothing_is_recommended_without_effect_or_without_a_green_strength(rows, reason):
    found = analysis()
    recommended = found.recommend(*judged(found, rows))
    assert (recommended.layers, recommended.alpha, recommended.effect) == ((), None, None)
    assert reason in recommended.reason


def test_what_random_directions_do_too_is_no_effect():
    found = analysis()
    steered, random = answers(1.0, 2.1, seed=1), answers(1.0, 2.1, seed=2)
    result = found.point(Point((5,), 0.1, 1.0), steered, random)
    assert result.effect.low > 0
    assert not result.is_effective


def test_less_can_be_more_of_the_behavior():
    fewer = Measure("charm", "lower", "points", "made up", MEASURE.score)
    found = analysis(fewer)
    results, steered = judged(found, [((5,), 0.1, -2.0, 0.1)])
    assert results[0].effect.value == pytest.approx(2.0)
    assert found.recommend(results, steered).layers == (5,)


def test_figures_are_relative_to_the_unsteered():
    found = analysis()
    loop = Answers([Said("sea " * 9, (1,) * 9, 3.0)] * PROMPTS, {"charm": [0.0] * PROMPTS})
    figures = found.figures(loop)
    assert figures.perplexity_ratio.value == pytest.approx(math.e)
    assert figures.distinct_2.value == pytest.approx(1 / 8)
    assert figures.repetition.value == pytest.approx(5 / 6)
    assert figures.damage.value == pytest.approx((1 - 1 / 8) / 0.5)
    assert found.unsteered_perplexity().value == pytest.approx(math.e**2)


def test_the_interval_of_a_mean_is_that_of_its_prompts():
    found = analysis()
    wide = found.baseline(answers(1.0, 2.0, spread=1.0, seed=3)).effect
    # Unsteered answers vary by a tenth of that: ±1.96 · 1/√40.
    assert wide.high - wide.low == pytest.approx(2 * 1.96 / math.sqrt(PROMPTS), rel=0.3)


def test_the_same_answers_and_seed_give_the_same_result():
    rows = [((5,), 0.1, 0.5, 0.5), ((5,), 0.2, 1.0, 1.5)]
    one, two = analysis(), analysis()
    assert judged(one, rows)[0] == judged(two, rows)[0]
    assert one.window(*judged(one, rows)) == two.window(*judged(two, rows))
