import numpy as np
import pytest

from steerguard.extraction.methods import METHODS, find_direction

HIDDEN = 24


def activations(direction, *, pairs=200, noise=0.3, seed=0):
    """Pairs that differ along `direction`, in more or less of it, among what questions bring with them."""
    rng = np.random.default_rng(seed)
    questions = rng.standard_normal((pairs, HIDDEN)) * 5
    strength = rng.uniform(0.5, 1.5, (pairs, 1))
    positive = questions + strength * direction / 2 + rng.standard_normal((pairs, HIDDEN)) * noise
    negative = questions - strength * direction / 2 + rng.standard_normal((pairs, HIDDEN)) * noise
    return positive.astype(np.float32), negative.astype(np.float32)


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("method", METHODS)
def test_each_method_finds_the_direction_its_sign_and_its_length(method):
    direction = np.zeros(HIDDEN)
    direction[3], direction[17] = -4.0, 3.0
    found = find_direction(method, *activations(direction))
    # Questions of norm 25 stand in the logistic regression's way, which doesn't know of pairs.
    assert cosine(found, direction) > (0.8 if method == "logistic" else 0.99)
    # α = 1 goes as far along the direction found as the two sides are apart on the mean, 5 along the true one.
    assert np.linalg.norm(found) == pytest.approx(5 * cosine(found, direction), rel=0.05)


def test_pca_is_not_centered():
    """Differences that are all alike have no variance about their mean, and a direction all the same."""
    direction = np.ones(HIDDEN)
    found = find_direction("pca", *activations(direction, noise=0.01))
    assert cosine(found, direction) > 0.99


@pytest.mark.parametrize("method", METHODS)
def test_one_pair_is_enough(method):
    positive, negative = activations(np.ones(HIDDEN), pairs=1)
    found = find_direction(method, positive, negative)
    assert found @ (positive[0] - negative[0]) > 0


def test_many_pairs_are_summed_in_pieces():
    positive, negative = activations(np.ones(HIDDEN), pairs=2_500)
    found = find_direction("mean_difference", positive, negative)
    expected = (positive.astype(np.float64) - negative).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
