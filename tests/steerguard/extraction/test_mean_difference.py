import numpy as np
import pytest

from steerguard.extraction.activations import collect_activations
from steerguard.extraction.mean_difference import extract_vector
from steerguard.extraction.pairs import Pair, pairs_digest
from steerguard.vectors import VectorError

PAIRS = [
    Pair("How are you?", "Wonderful, thanks!", "Bad."),
    Pair("And the weather?", "Sun!", "Rain, rain and more rain."),
    Pair("Why?", "Because I love it.", "Who knows."),
]


def test_the_vector_is_the_mean_of_the_differences(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1, 3], name="cheerful")
    positive = collect_activations(tiny, [(pair.prompt, pair.positive) for pair in PAIRS], layers=[1, 3])
    negative = collect_activations(tiny, [(pair.prompt, pair.negative) for pair in PAIRS], layers=[1, 3])
    expected = (positive.means - negative.means).mean(axis=0)
    np.testing.assert_allclose(extraction.vector.layers[1], expected[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(extraction.vector.layers[3], expected[1], rtol=1e-3, atol=1e-5)


def test_turning_the_pairs_round_turns_the_vector_round(tiny):
    turned = [Pair(pair.prompt, pair.negative, pair.positive) for pair in PAIRS]
    vector = extract_vector(tiny, PAIRS, layers=[2]).vector
    opposite = extract_vector(tiny, turned, layers=[2]).vector
    np.testing.assert_allclose(opposite.layers[2], -vector.layers[2], rtol=1e-3, atol=1e-5)


def test_the_same_pairs_give_the_same_digest(tiny):
    first = extract_vector(tiny, PAIRS, layers=[1, 2]).vector
    again = extract_vector(tiny, PAIRS, layers=[2, 1]).vector
    assert again.digest == first.digest


def test_the_vector_says_where_it_comes_from(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1], name="cheerful")
    vector = extraction.vector
    assert (vector.name, vector.base_model, vector.hidden_size) == ("cheerful", "tiny-llama", 32)
    assert vector.provenance == {
        "method": "mean_difference",
        "tokens": "response",
        "norm": "raw",
        "pairs": "3",
        "pairs_sha256": pairs_digest(PAIRS),
        "residual_norm.1": f"{extraction.residual_norms[1]:.2f}",
    }


def test_dose_and_alpha_are_each_others_inverse(tiny):
    extraction = extract_vector(tiny, PAIRS, layers=[1])
    assert extraction.dose(2.0, 1) == pytest.approx(2 * extraction.vector.norms[1] / extraction.residual_norms[1])
    assert extraction.dose(extraction.alpha_for_dose(0.3, 1), 1) == pytest.approx(0.3)


def test_two_sides_that_do_not_differ_are_refused(tiny):
    pairs = [Pair("a", "b", "c"), Pair("a", "c", "b")]
    with pytest.raises(VectorError):
        # Bit for bit zero, because both sides hold the same answers of the same length.
        extract_vector(tiny, pairs, layers=[0])
