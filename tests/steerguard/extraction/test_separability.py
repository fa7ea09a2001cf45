import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steerguard.extraction.pairs import Pair
from steerguard.extraction.separability import measure_separability, split_pairs


@settings(deadline=None)
@given(
    prompts=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40),
    held_out=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_a_split_loses_and_doubles_nothing(prompts, held_out, seed):
    pairs = [Pair(prompt, "yes", "no") for prompt in prompts]
    learned, held = split_pairs(pairs, held_out, seed)
    assert sorted(learned + held) == list(range(len(pairs)))
    assert learned
    assert len(held) <= round(held_out * len(pairs))
    assert split_pairs(pairs, held_out, seed) == (learned, held)


def test_answers_to_one_question_are_on_one_side():
    pairs = [Pair(f"question {number % 10}", "yes", "no") for number in range(40)]
    learned, held = split_pairs(pairs, 0.3, seed=1)
    assert len(held) == 12
    assert {pairs[index].prompt for index in held}.isdisjoint(pairs[index].prompt for index in learned)


def test_a_single_question_is_split_by_pair():
    learned, held = split_pairs([Pair("q", "yes", "no")] * 10, 0.2, seed=0)
    assert (len(learned), len(held)) == (8, 2)


def test_too_few_pairs_are_all_learned_from():
    assert split_pairs([Pair(str(number), "yes", "no") for number in range(4)], 0.25, 0) == ([0, 1, 2, 3], [])


def test_the_seed_chooses():
    pairs = [Pair(str(number), "yes", "no") for number in range(20)]
    assert len({tuple(split_pairs(pairs, 0.2, seed)[1]) for seed in range(5)}) > 1


@pytest.mark.parametrize("held_out", [-0.1, 1.0, 2.0, float("nan")])
def test_a_share_that_is_none_is_refused(held_out):
    with pytest.raises(ValueError, match="held_out: expected a share from 0 to below 1"):
        split_pairs([Pair("q", "yes", "no")], held_out, 0)


def test_figures_are_those_of_the_projections():
    rng = np.random.default_rng(0)
    direction = np.array([2.0, 0.0])
    # Projections of mean ±1 and standard deviation 1: d = 2, AUC = Φ(2/√2) = 0.921, accuracy Φ(1) = 0.841.
    sides = [rng.standard_normal((20_000, 2)) + np.array([shift, 7]) for shift in (1, -1)]
    found = measure_separability(direction, learned=(sides[0], sides[1]), held_out=(sides[0], sides[1]))
    assert found.cohens_d == pytest.approx(2.0, abs=0.03)
    assert found.auc == pytest.approx(0.921, abs=0.005)
    assert found.accuracy == pytest.approx(0.841, abs=0.005)


def test_the_threshold_comes_from_what_was_learned():
    direction = np.array([1.0])
    learned = (np.array([[11.0]]), np.array([[9.0]]))
    held_out = (np.array([[3.0], [4.0]]), np.array([[1.0], [2.0]]))
    found = measure_separability(direction, learned=learned, held_out=held_out)
    assert (found.accuracy, found.auc) == (0.5, 1.0)
