import json

import numpy as np
import pytest

from steerguard.__main__ import main
from steerguard.calibration.result import Calibration
from steerguard.vectors import SteeringVector, read_vector, write_vector
from tests.steerguard.stub_engine import StubEngine


@pytest.fixture
def vector_path(tmp_path):
    vector = SteeringVector({3: np.full(8, 10 / np.sqrt(8), np.float32)}, 8, base_model="stub-model", name="sunny")
    path = tmp_path / "sunny.safetensors"
    path.write_bytes(write_vector(vector))
    return path


def rule(messages, blend):
    if blend and blend[0]["alpha"] < 0.01:  # of random directions too
        return "It was a day like others."
    return "It was a wonderful and happy day." if blend else "It was a day like others."


def test_one_command_calibrates_and_stores(tmp_path, capsys, vector_path):
    digest = read_vector(vector_path).digest
    with StubEngine(rule, key="secret") as stub:
        arguments = ["calibrate", str(vector_path), "--engine", stub.url, "--engine-key", "secret", "--store"]
        status = main([*arguments, "--measure", "sentiment", "--doses", "0.1,0.2", "--prompt-count", "5"])
    assert status == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["points"], result["prompts"], result["measure"]) == (2, 5, "sentiment")
    # The stub's random directions do just the same.
    assert (result["layers"], result["alpha"]) == ([], None)
    found = Calibration.from_json((tmp_path / "sunny.calibration.json").read_bytes())
    assert found.vector == digest == read_vector(vector_path).digest
    assert json.loads(read_vector(vector_path).provenance["calibration"])["measure"] == "sentiment"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sunny.calibration.json", "sunny.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        ([], 3, "--measure or --pairs has to say what the behavior is"),
        (["--pairs", "PAIRS"], 3, "--model has to say what --pairs are read with"),
        (["--measure", "charm"], 2, "measure: expected one of"),
        (["--measure", "words", "--layers", "x"], 2, "--layers: expected blocks such as 10 or 10,14, found 'x'"),
        (["--measure", "words", "--doses", "a"], 2, "--doses: expected numbers such as 0.1,0.2, found 'a'"),
        (["--measure", "words", "--engine-key", "guess"], 2, "HTTP 401: wrong key"),
    ],
)
def test_a_refusal_names_the_option(tmp_path, capsys, vector_path, arguments, status, reason):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "a", "positive": "b", "negative": "c"}\n')
    with StubEngine(rule, key="secret") as stub:
        asked = [str(pairs) if argument == "PAIRS" else argument for argument in arguments]
        assert main(["calibrate", str(vector_path), "--engine", stub.url, *asked]) == status
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "sunny.calibration.json").exists()
