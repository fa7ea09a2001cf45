import numpy as np
import pytest

from steerguard.calibration.damage import Limits, damage, distinct_n, repetition

LIMITS = Limits(perplexity_ratio=4.0, repetition=0.2, distinct_2=0.1)


def of(nll=0.0, extra_repetition=0.0, lost_distinct_2=0.0):
    found = damage(
        extra_nll=np.array([nll]),
        extra_repetition=np.array([extra_repetition]),
        lost_distinct_2=np.array([lost_distinct_2]),
        limits=LIMITS,
    )
    return float(found[0])


def test_each_part_is_one_at_its_limit_and_the_worst_counts():
    assert of(nll=np.log(4.0)) == pytest.approx(1)
    assert of(nll=np.log(16.0)) == pytest.approx(2)
    assert of(extra_repetition=0.2) == pytest.approx(1)
    assert of(lost_distinct_2=0.1) == pytest.approx(1)
    assert of(nll=np.log(4.0), extra_repetition=0.6, lost_distinct_2=0.1) == pytest.approx(3)


def test_an_answer_that_is_better_than_unsteered_has_no_damage():
    assert of(nll=-1.0, extra_repetition=-0.5, lost_distinct_2=-0.5) == 0.0


def test_distinct_and_repetition_see_loops():
    assert distinct_n("the sea the sea The SEA", 2) == pytest.approx(2 / 5)
    assert distinct_n("one two three", 2) == 1.0
    assert distinct_n("one", 2) == distinct_n("", 2) == 1.0
    assert repetition([1, 2, 3, 4] * 5) == pytest.approx(1 - 4 / 17)
    assert repetition([1, 2, 3, 4, 5, 6]) == repetition([1]) == repetition([]) == 0.0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"perplexity_ratio": 1.0}, "perplexity_ratio: expected a number above 1"),
        ({"repetition": 0.0}, "repetition: expected a share"),
        ({"distinct_2": 1.1}, "distinct_2: expected a share"),
    ],
)
def test_limits_that_limit_nothing_are_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        Limits(**wrong)
