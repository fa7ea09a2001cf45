"""`manage.py plan`, as a newcomer types it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

MEASURED = Path(__file__).parent / "measured-2026-12-01.json"


def plan(*options: str) -> str:
    out = io.StringIO()
    call_command("plan", *options, stdout=out)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_prints_a_table_that_fits_80_columns() -> None:
    text = plan("--model", "llama-3.1-8b", "--gpu-gib", "80", "--bus", "pcie5", "--personas", "50", "--rank", "16")
    assert all(len(line) <= 80 for line in text.splitlines())
    for words in ("27.3 MB each, 1.36 GB all", "8,192 B each", "over PCIe 4.0", "Mean wait", "A persona and month"):
        assert words in text
    assert text.endswith("\n")


@pytest.mark.parametrize("option", ["--published", "--articles"])
def test_other_tables_fit_too(option: str) -> None:
    text = plan(option)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "S-LoRA" in text


def test_checks_show_predicted_beside_measured() -> None:
    text = plan("--checks", "--calibration", str(MEASURED))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "182 / 195 -7%" in text
    assert "✗" in text


def test_json_has_every_figure() -> None:
    told: dict[str, Any] = json.loads(plan("--json", "--personas", "50", "--max-seqs", "50"))
    assert told["steering"]["allocated"] == 873_088
    assert told["ways"]["lora"]["swap_s"].keys() == {"pcie4", "pcie5"}
    assert told["question"]["adapter"] == {"rank": 16, "modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    assert told["speed"]["calibrated"] is False


def test_a_wait_without_end_is_null() -> None:
    options = ("--slots", "1", "--personas", "20", "--requests-per-s", "40", "--zipf-s", "3", "--output-tokens", "900")
    assert json.loads(plan("--json", *options))["ways"]["lora"]["wait"]["slot_wait_s"] is None
    assert "no end" in plan(*options)


def test_a_calibration_gives_measured_speeds() -> None:
    options = ("--model", "smollm2-135m", "--gpu-gib", "24", "--calibration", str(MEASURED))
    assert "Speed, measured" in plan(*options)
    assert "Speed at best" in plan("--model", "smollm2-135m", "--gpu-gib", "24", "--no-calibration")


def test_a_model_folder_and_a_list_of_modules_can_be_given(tmp_path: Path) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    told = json.loads(plan("--json", "--model", str(tmp_path), "--modules", "q_proj,down_proj", "--gpu-gib", "8"))
    assert told["adapter_bytes"] == 2 * 16 * ((64 + 64) + (128 + 64)) * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rank", "0"), "--rank: expected a whole number from 1 to 512, found 0"),
        (("--gpu-gib", "much"), "--gpu-gib: expected a number, found 'much'"),
        (("--model", "gpt-9"), "--model: expected llama-3.1-8b"),
        (("--calibration", "/nowhere.json", "--model", "smollm2-135m"), "--calibration: expected a file"),
        (("--checks", "--calibration", "/nowhere.json"), "--calibration: expected a file"),
    ],
)
def test_an_error_names_the_option(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError) as error:
        plan(*options)
    assert message in str(error.value)
