import json

import pytest

from steerguard.__main__ import main
from steerguard.extraction.cli import parse_layers
from steerguard.vectors import read_vector
from tests.tiny_model import write_tiny_model

PAIRS = '{"prompt": "Hi", "positive": "Hello!", "negative": "Go away."}\n'


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def test_extract_prints_one_json_line_and_writes_the_vector(tmp_path, capsys, model):
    pairs = tmp_path / "warm.jsonl"
    pairs.write_text(PAIRS)
    out = tmp_path / "made" / "warm.safetensors"
    status = main(["extract", str(pairs), "--model", str(model), "--layers", "0,2-3", "--out", str(out)])
    printed = capsys.readouterr().out
    assert status == 0
    assert printed.count("\n") == 1
    result = json.loads(printed)
    vector = read_vector(out)
    assert (result["name"], result["digest"]) == ("warm", vector.digest)
    assert (result["layers"], result["hidden_size"], result["base_model"]) == ([0, 2, 3], 32, "tiny-llama")
    assert set(result["norms"]) == set(result["residual_norms"]) == {"0", "2", "3"}
    assert [path.name for path in out.parent.iterdir()] == ["warm.safetensors"]


def test_extracting_twice_gives_the_same_bytes(tmp_path, capsys, model):
    pairs = tmp_path / "warm.jsonl"
    pairs.write_text(PAIRS * 1)
    outs = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for out in outs:
        main(["extract", str(pairs), "--model", str(model), "--layers", "all", "--out", str(out)])
    assert outs[0].read_bytes() == outs[1].read_bytes()


@pytest.mark.parametrize(
    ("line", "layers", "reason"),
    [
        ('{"prompt": "Hi", "positive": "Hello!"}', "0", "line 1: field 'negative'"),
        (PAIRS, "4", "--layers: expected blocks 0 to 3, found '4'"),
        (PAIRS, "1,x", "--layers: expected blocks such as 10,14"),
    ],
)
def test_a_refusal_names_the_reason_and_writes_nothing(tmp_path, capsys, model, line, layers, reason):
    pairs = tmp_path / "warm.jsonl"
    pairs.write_text(line)
    out = tmp_path / "out.safetensors"
    status = main(["extract", str(pairs), "--model", str(model), "--layers", layers, "--out", str(out)])
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert reason in printed.err
    assert not out.exists()


def test_a_missing_file_and_a_missing_model_are_refused(tmp_path, capsys):
    out = str(tmp_path / "out.safetensors")
    arguments = ["--model", str(tmp_path / "none"), "--layers", "0", "--out", out]
    assert main(["extract", str(tmp_path / "none.jsonl"), *arguments]) == 2
    pairs = tmp_path / "warm.jsonl"
    pairs.write_text(PAIRS)
    assert main(["extract", str(pairs), *arguments]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_layers_are_lists_ranges_or_all():
    assert parse_layers("all", 3) == [0, 1, 2]
    assert parse_layers("10, 14", 30) == [10, 14]
    assert parse_layers("8-10,9,2", 30) == [2, 8, 9, 10]
    for wrong in ("", "3-1", "-1", "1-", "30", "²"):
        with pytest.raises(ValueError, match="--layers"):
            parse_layers(wrong, 30)
