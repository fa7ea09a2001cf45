from threading import Event

import numpy as np
import pytest

from steerguard.calibration.ask import Sampling
from steerguard.calibration.calibrate import calibrate
from steerguard.calibration.measures import Measure, find_measure
from steerguard.calibration.result import Calibration, json_schema
from steerguard.extraction.engine import Engine, EngineError
from steerguard.extraction.progress import Stopped
from steerguard.vectors import SteeringVector
from tests.steerguard.stub_engine import StubEngine

PROMPTS = [f"Tell me about topic number {number} please" for number in range(8)]
DOSES = (0.1, 0.3, 0.9)
STRONG, LOST = 2.0, 8.0  # α from which answers are charming, and from which they are nothing else

LOVELY = Measure(
    "lovely", "higher", "words", "counted", lambda all: [float(answer.split().count("lovely")) for _, answer in all]
)


@pytest.fixture
def vector() -> SteeringVector:
    """‖v‖ is 10 on blocks 3 and 6, and ‖h‖ 100: a dose is a tenth of α."""
    rows = {block: np.full(8, 10 / np.sqrt(8), np.float32) for block in (3, 6)}
    return SteeringVector(rows, 8, base_model="stub-model", name="lovely")


def rule_for(vector: SteeringVector):
    def rule(messages, blend):
        topic = messages[-1]["content"].split()[-2]
        if messages[0]["role"] == "system":
            return f"What a lovely topic {topic} is"
        strength = sum(component["alpha"] for component in blend if component["vector"] == vector.digest)
        if strength > LOST:
            return "lovely " * 30
        return f"Topic {topic} is " + ("lovely lovely and nice" if strength > STRONG else "one of many to tell of")

    return rule


def run(vector, stub, **more):
    arguments = {"prompts": PROMPTS, "measures": [LOVELY], "doses": DOSES, "seed": 7, **more}
    return calibrate(vector, Engine(stub.url, concurrency=16), **arguments)


def test_a_sweep_finds_strength_window_and_collapse(vector):
    seen = []
    with StubEngine(rule_for(vector)) as stub:
        found = run(vector, stub, instruction="Be lovely.", on_progress=lambda done, total: seen.append((done, total)))
        assert stub.vectors == set()  # as it was found
    assert [(point.layers, point.dose) for point in found.points] == [
        (layers, dose) for layers in ((3,), (6,), (3, 6)) for dose in DOSES
    ]
    assert found.points[0].alpha == pytest.approx(1.0)
    assert [point.zone for point in found.points[:3]] == ["green", "green", "red"]
    assert [point.is_effective for point in found.points[:3]] == [False, True, True]
    assert found.points[1].effect.value == pytest.approx(2.0)
    assert found.points[1].random.behavior["lovely"].value == 0.0
    assert (found.recommendation.dose, found.recommendation.alpha) == (0.3, pytest.approx(3.0))
    assert 0.3 < found.windows[0].green_to.dose < found.windows[0].red_from.dose < 0.9
    assert found.windows[0].effective_from.dose == 0.3
    assert found.instructed.effect.value == pytest.approx(1.0)
    assert found.unsteered.effect.value == 0.0
    assert found.unsteered.sample == "Topic 0 is one of many to tell of"
    assert seen[-1] == (8 * (1 + 1 + 2 * 9), 8 * (1 + 1 + 2 * 9))
    assert Calibration.from_json(found.to_json()) == found


def test_likelihood_is_asked_for_after_the_plain_prompt(vector):
    with StubEngine(rule_for(vector), logprob=lambda word: -3.0 if word == "lovely" else -0.5) as stub:
        found = run(vector, stub, layer_sets=[(3,)], doses=(0.3,), instruction="Be lovely.")
        prompts = [body["prompt"] for body in stub.asked if "prompt" in body]
        plain = stub._ids(PROMPTS[0])
        system = stub._ids("Be lovely.")
    assert all(prompt[: len(plain) - 2] == plain[:-2] for prompt in prompts)  # but for number and "please"
    assert all(prompt[:2] != system for prompt in prompts)
    # "Topic 0 is lovely lovely and nice <end>": (2 · 3 + 6 · 0.5) / 8, against 0.5 throughout.
    assert found.points[0].steered.perplexity_ratio.value == pytest.approx(np.exp(9 / 8 - 0.5))
    assert found.unsteered_perplexity.value == pytest.approx(np.exp(0.5))


def test_each_point_is_asked_as_it_is_reported(vector):
    with StubEngine(rule_for(vector)) as stub:
        found = run(vector, stub, sampling=Sampling(max_tokens=5, positions="response"), layer_sets=[(6, 3)])
        specs = [body["vllm_xargs"]["steerguard"] for body in stub.chats() if "vllm_xargs" in body]
        assert {body["max_tokens"] for body in stub.chats()} == {5}
    own = [spec for spec in specs if vector.digest in spec]
    assert len(own) == len(PROMPTS) * len(DOSES) == len(specs) / 2
    assert all('"positions": "response", "layers": [3, 6]' in spec for spec in specs)
    assert found.positions == "response"


def test_the_same_seed_gives_the_same_file(vector):
    with StubEngine(rule_for(vector)) as stub:
        assert run(vector, stub).to_json() == run(vector, stub).to_json()
        assert run(vector, stub, seed=8).to_json() != run(vector, stub).to_json()


def test_a_stopped_calibration_asks_only_for_the_rest(vector, tmp_path):
    with StubEngine(rule_for(vector)) as stub:
        stop = Event()
        stub.on_answer = lambda count: stop.set() if count >= 40 else None
        with pytest.raises(Stopped):
            run(vector, stub, work=tmp_path, should_stop=stop.is_set)
        assert stub.vectors == set()
    kept = (tmp_path / "answers.jsonl").read_bytes().count(b"\n")
    assert kept >= 24  # what was in flight was broken off
    with StubEngine(rule_for(vector)) as stub:
        found = run(vector, stub, work=tmp_path)
        assert len(stub.chats()) == len(PROMPTS) * 19 - kept
        assert found.to_json() == run(vector, stub).to_json()


def test_a_vector_that_was_on_the_engine_stays(vector):
    with StubEngine(rule_for(vector)) as stub:
        stub.vectors.add(vector.digest)
        run(vector, stub)
        assert stub.vectors == {vector.digest}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"prompts": PROMPTS[:3]}, "prompts: expected at least 4, each once, found 3"),
        ({"prompts": PROMPTS * 2}, "prompts: expected at least 4, each once"),
        ({"measures": []}, "measures: expected at least one"),
        ({"measures": [LOVELY, LOVELY]}, "measures: expected each once"),
        ({"doses": (9.0,)}, "doses: expected at most 8, the engine's ceiling, found 9"),
        ({"layer_sets": [(4,)]}, r"layers: expected blocks that the vector has \(3, 6\), found \[4\]"),
    ],
)
def test_what_can_not_be_calibrated_is_refused_before_anything_is_asked(vector, wrong, reason):
    with StubEngine(rule_for(vector)) as stub:
        with pytest.raises(ValueError, match=reason):
            run(vector, stub, **wrong)
        assert stub.asked == []
        assert stub.vectors == set()


def test_a_vector_for_another_model_is_refused(vector):
    with StubEngine(rule_for(vector), hidden_size=16) as stub, pytest.raises(ValueError, match="hidden size 16"):
        run(vector, stub)
    shallow = StubEngine(rule_for(vector), norms=dict.fromkeys(range(5), 1.0))
    with shallow as stub, pytest.raises(ValueError, match="vector: expected blocks below 5, the engine's, found 6"):
        run(vector, stub)


def test_an_engine_that_fails_ends_it_and_is_left_clean(vector):
    with StubEngine(rule_for(vector)) as stub:
        stub.failures["/v1/completions"] = 10_000
        with pytest.raises(EngineError, match="HTTP 503: busy"):
            calibrate(
                vector, Engine(stub.url, retries=0), prompts=PROMPTS, measures=[LOVELY], doses=DOSES, layer_sets=[(3,)]
            )
        assert stub.vectors == set()


def test_what_a_slider_needs_is_stored_with_the_vector(vector):
    with StubEngine(rule_for(vector)) as stub:
        found = run(vector, stub)
    stored = found.stored_with(vector)
    assert stored.digest == vector.digest
    assert '"measure":"lovely","layers":[3],"alpha":3.0,"dose":0.3' in stored.provenance["calibration"]
    other = SteeringVector({3: np.ones(8, np.float32)}, 8)
    with pytest.raises(ValueError, match="vector: expected"):
        found.stored_with(other)


def test_a_file_that_is_no_calibration_is_refused_by_field(vector):
    with StubEngine(rule_for(vector)) as stub:
        data = run(vector, stub).to_json()
    with pytest.raises(ValueError, match=r"points\.0\.zone"):
        Calibration.from_json(data.replace(b'"zone": "green"', b'"zone": "blue"', 1))
    with pytest.raises(ValueError, match="file"):
        Calibration.from_json(b"[")
    assert json_schema()["properties"]["format"]["const"] == "steerguard.calibration.v1"


def test_public_measures_are_asked_too(vector):
    with StubEngine(rule_for(vector)) as stub:
        found = run(vector, stub, measures=[LOVELY, find_measure("sentiment")])
    assert found.points[1].steered.behavior["sentiment"].value > found.unsteered.figures.behavior["sentiment"].value
    assert [measure.name for measure in found.measures] == ["lovely", "sentiment"]
