import json

import numpy as np
import pytest

from steerguard.extraction.activations import collect_activations
from steerguard.extraction.extract import extract_vector
from steerguard.extraction.methods import METHODS
from steerguard.extraction.pairs import Pair, pairs_digest
from steerguard.vectors import VectorError

PAIRS = [
    Pair("How are you?", "Wonderful, thanks!", "Bad."),
    Pair("And the weather?", "Sun!", "Rain, rain and more rain."),
    Pair("Why?", "Because I love it.", "Who knows."),
]
MORE_PAIRS = [
    Pair(f"Question {number}?", f"Lovely, {number} times lovely!", f"Awful, {number} times awful.")
    for number in range(10)
]


def sides(tiny, pairs, layers):
    return (
        collect_activations(tiny, [(pair.prompt, getattr(pair, side)) for pair in pairs], layers=layers).means
        for side in ("positive", "negative")
    )


def test_the_vector_is_the_mean_of_the_differences(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1, 3], name="cheerful")
    positive, negative = sides(tiny, PAIRS, [1, 3])
    expected = (positive - negative).mean(axis=1)
    np.testing.assert_allclose(extraction.vector.layers[1], expected[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(extraction.vector.layers[3], expected[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_turning_the_pairs_round_turns_the_vector_round(tiny, method):
    turned = [Pair(pair.prompt, pair.negative, pair.positive) for pair in PAIRS]
    vector = extract_vector(tiny, PAIRS, layers=[2], method=method).vector
    opposite = extract_vector(tiny, turned, layers=[2], method=method).vector
    np.testing.assert_allclose(opposite.layers[2], -vector.layers[2], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_pairs_give_the_same_digest(tiny, method):
    first = extract_vector(tiny, PAIRS, layers=[1, 2], method=method).vector
    again = extract_vector(tiny, PAIRS, layers=[2, 1], method=method).vector
    assert again.digest == first.digest


def test_the_vector_says_where_it_comes_from(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1], name="cheerful", made_from={"answers": "by hand"})
    vector = extraction.vector
    assert (vector.name, vector.base_model, vector.hidden_size) == ("cheerful", "tiny-llama", 32)
    provenance = dict(vector.provenance)
    assert provenance.pop("transformers")
    assert provenance == {
        "method": "mean_difference",
        "tokens": "response",
        "norm": "raw",
        "pairs": "3",
        "pairs_sha256": pairs_digest(PAIRS),
        "held_out_pairs": "0",
        "seed": "0",
        "answers": "by hand",
        "residual_norm.1": f"{extraction.residual_norms[1]:.2f}",
    }


def test_what_is_held_out_is_measured_and_not_learned_from(tiny):
    extraction = extract_vector(tiny, MORE_PAIRS, layers=[1, 2], held_out=0.3, seed=4)
    assert (extraction.learned_pairs, extraction.held_out_pairs) == (7, 3)
    everything = extract_vector(tiny, MORE_PAIRS, layers=[1, 2], held_out=0)
    assert everything.separability == {}
    assert everything.vector.digest != extraction.vector.digest
    assert set(extraction.separability) == {1, 2}
    # A random model tells "Lovely" from "Awful" by the tokens alone.
    assert extraction.separability[1].accuracy == 1.0
    assert extraction.separability[1].cohens_d > 1
    assert json.loads(extraction.vector.provenance["held_out_accuracy"])["1"] == 1.0
    other = extract_vector(tiny, MORE_PAIRS, layers=[1, 2], held_out=0.3, seed=5)
    assert other.vector.digest != extraction.vector.digest


def test_a_behavior_that_is_not_there_does_not_separate(tiny):
    """Sides swapped at random: what is learned from some pairs says nothing about the others."""
    flips = np.random.default_rng(0).integers(0, 2, 40)
    pairs = [
        Pair(f"Question {number}?", *((f"It is {a}.", f"It is {b}.") if flip else (f"It is {b}.", f"It is {a}.")))
        for number, (flip, a, b) in enumerate(zip(flips, range(40), range(100, 140), strict=True))
    ]
    found = extract_vector(tiny, pairs, layers=[1], held_out=0.5).separability[1]
    assert abs(found.cohens_d) < 1.5
    assert 0.2 < found.accuracy < 0.8


def test_dose_and_alpha_are_each_others_inverse(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1])
    assert extraction.dose(2.0, 1) == pytest.approx(2 * extraction.vector.norms[1] / extraction.residual_norms[1])
    assert extraction.dose(extraction.alpha_for_dose(0.3, 1), 1) == pytest.approx(0.3)


@pytest.mark.parametrize("method", METHODS)
def test_two_sides_that_do_not_differ_are_refused(tiny, method):
    pairs = [Pair("a", "b", "c"), Pair("a", "c", "b")]
    with pytest.raises(VectorError, match="block 0: expected two sides that differ"):
        # Bit for bit zero, because both sides hold the same answers of the same length.
        extract_vector(tiny, pairs, layers=[0], method=method)


def test_an_unknown_method_is_refused(tiny):
    with pytest.raises(ValueError, match="method: expected one of mean_difference, pca, logistic, found 'lasso'"):
        extract_vector(tiny, PAIRS, layers=[0], method="lasso")  # type: ignore[arg-type]
