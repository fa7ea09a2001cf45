import pytest

from steerguard.calibration.probe import train_probe
from steerguard.extraction.activations import load_language_model
from steerguard.extraction.pairs import Pair
from tests.tiny_model import write_tiny_model

PAIRS = [Pair(f"Question {n}?", f"Lovely, {n} times lovely!", f"Awful, {n} times awful.") for n in range(20)]


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    language_model = load_language_model(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama"))
    return train_probe(language_model, PAIRS, seed=1)


def test_a_probe_tells_answers_apart_that_it_has_not_seen(probe):
    assert probe.accuracy == 1.0
    assert probe.held_out_answers == 12
    lovely, awful, empty = probe.score(
        [("Another?", "Lovely, lovely, lovely!"), ("Another?", "Awful, awful, awful."), ("Another?", " ")]
    )
    assert lovely > 0.5 > awful
    assert empty == 0.0


def test_as_a_measure_it_says_how_good_it_is(probe):
    measure = probe.as_measure()
    assert (measure.name, measure.sign) == ("probe", 1.0)
    assert "accuracy 1.00 on 12 held-out answers" in measure.source
    assert measure.score([]) == []


def test_too_few_pairs_are_refused(probe):
    with pytest.raises(ValueError, match="pairs: expected at least 6 to train a probe on, found 5"):
        train_probe(probe.language_model, PAIRS[:5])
