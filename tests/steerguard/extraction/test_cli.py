import json
from pathlib import Path
from typing import get_args

import pytest

from steerguard.__main__ import main
from steerguard.extraction.forward import Tokens
from steerguard.extraction.methods import METHODS
from steerguard.extraction.pairs import Pair, read_pairs, write_pairs
from steerguard.vectors import read_vector
from tests.steerguard.stub_engine import StubEngine

PAIRS = [Pair(f"Question {n}?", f"Lovely, {n} times lovely!", f"Awful, {n} times awful.") for n in range(10)]


def write(folder: Path, pairs: list[Pair]) -> Path:
    path = folder / "warm.jsonl"
    path.write_bytes(write_pairs(pairs))
    return path


def test_the_report_says_how_well_held_out_pairs_separate(tmp_path, capsys, tiny_model_folder):
    out = tmp_path / "warm.safetensors"
    arguments = ["extract", str(write(tmp_path, PAIRS)), "--model", str(tiny_model_folder), "--out", str(out)]
    assert main([*arguments, "--method", "logistic", "--held-out", "0.4", "--seed", "3"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["layers"] == [0, 1, 2, 3]
    assert (report["pairs"], report["learned_pairs"], report["held_out_pairs"]) == (10, 6, 4)
    assert report["separability"]["1"]["accuracy"] == 1.0
    assert read_vector(out).provenance["method"] == "logistic"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["warm.jsonl", "warm.safetensors"]


def test_a_csv_file_gives_the_same_vector(tmp_path, capsys, tiny_model_folder):
    csv = tmp_path / "warm.csv"
    csv.write_text("positive,negative,prompt\n" + "".join(f'"{p.positive}","{p.negative}",{p.prompt}\n' for p in PAIRS))
    digests = []
    for path in (csv, write(tmp_path, PAIRS)):
        out = tmp_path / "out.safetensors"
        assert main(["extract", str(path), "--model", str(tiny_model_folder), "--out", str(out), "--layers", "2"]) == 0
        digests.append(json.loads(capsys.readouterr().out)["digest"])
    assert digests[0] == digests[1]


def test_two_system_prompts_and_questions_give_a_vector(tmp_path, capsys, tiny_model_folder, monkeypatch):
    monkeypatch.setenv("STEERGUARD_ENGINE_KEY", "secret")
    questions = tmp_path / "questions.txt"
    questions.write_text("\n".join(pair.prompt for pair in PAIRS))
    out, kept = tmp_path / "warm.safetensors", tmp_path / "kept.jsonl"
    with StubEngine(lambda messages, _: f"{messages[0]['content']} {messages[1]['content']}", key="secret") as stub:
        arguments = ["extract", "--model", str(tiny_model_folder), "--out", str(out), "--layers", "1"]
        asked = ["--questions", str(questions), "--engine", stub.url, "--save-pairs", str(kept)]
        status = main([*arguments, *asked, "--positive-system", "Lovely!", "--negative-system", "Awful!"])
    assert status == 0
    assert read_pairs(kept)[0] == Pair("Question 0?", "Lovely! Question 0?", "Awful! Question 0?")
    assert json.loads(capsys.readouterr().out)["pairs"] == 10
    vector = read_vector(out)
    assert (vector.name, vector.provenance["positive_system"]) == ("questions", "Lovely!")
    assert main(["extract", str(kept), *arguments[1:]]) == 0
    assert read_vector(out).digest == vector.digest


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "PAIRS, --questions: expected one of them, found neither"),
        (["PAIRS", "--questions", "QUESTIONS"], "PAIRS, --questions: expected one of them, found both"),
        (["--questions", "QUESTIONS"], "--engine: expected with --questions, found nothing"),
        (
            ["--questions", "QUESTIONS", "--engine", "http://127.0.0.1:9"],
            "--positive-system: expected with --questions",
        ),
        (["PAIRS", "--held-out", "1"], "held_out: expected a share from 0 to below 1, found 1.0"),
    ],
)
def test_a_refusal_names_the_option(tmp_path, capsys, tiny_model_folder, arguments, reason):
    questions = tmp_path / "questions.txt"
    questions.write_text("Why?\n")
    places = {"PAIRS": str(write(tmp_path, PAIRS)), "QUESTIONS": str(questions)}
    out = tmp_path / "out.safetensors"
    common = ["--model", str(tiny_model_folder), "--out", str(out)]
    assert main(["extract", *(places.get(argument, argument) for argument in arguments), *common]) == 2
    assert reason in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("option", "values"), [("--method", METHODS), ("--tokens", get_args(Tokens))])
def test_the_options_name_all_that_the_library_knows(capsys, option, values):
    with pytest.raises(SystemExit):
        main(["extract", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"{option} {{{','.join(values)}}}" in text
