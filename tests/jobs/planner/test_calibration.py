"""Speeds from a benchmark, and how well they predict batch sizes that were left out."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from jobs.planner.calibration import PROMPT_TOKENS, TOLERANCE, Calibration, read_calibration
from jobs.planner.errors import PlanError
from jobs.planner.inputs import find_calibration
from jobs.planner.shape import PRESETS

# The benchmark of 2026-12-01 on the two-core machine: seven rounds, four batch sizes.
MEASURED = Path(__file__).parent / "measured-2026-12-01.json"


@pytest.fixture
def measured() -> Calibration:
    return read_calibration(MEASURED)


@pytest.mark.parametrize("row", ["stock", "idle", "steered 1", "steered 50", "steered 256"])
@pytest.mark.parametrize("figure", ["tokens_per_s", "inter_token_ms"])
def test_predicts_batch_sizes_that_it_was_not_told(measured: Calibration, row: str, figure: str) -> None:
    checks = [check for check in measured.checks(row) if check.figure == figure]
    assert [check.batch for check in checks] == [1, 8, 64, 256]
    assert [check for check in checks if abs(check.error) > TOLERANCE] == []


def test_predicts_adapters_between_batch_sizes_but_not_beyond(measured: Calibration) -> None:
    checks = {check.batch: check for check in measured.checks("lora-50") if check.figure == "tokens_per_s"}
    assert checks[8].inside and checks[8].holds
    assert not checks[1].inside and not checks[1].holds


def test_admits_that_first_tokens_of_whole_batches_are_not_predicted(measured: Calibration) -> None:
    missed = [check.batch for check in measured.checks("stock") if check.figure == "ttft_ms" and not check.holds]
    assert {1, 8} <= set(missed)


def test_other_rows_are_predicted_from_stock(measured: Calibration) -> None:
    """Steering costs nothing, so the stock engine's curve is steering's too."""
    speed = measured.speed("stock")
    for batch, figures in measured.medians["steered 50"].items():
        assert speed.inter_token_s(batch, 0) * 1000 == pytest.approx(figures["inter_token_ms"], rel=TOLERANCE)


def written(path: Path, samples: dict[str, Any], **more: Any) -> Path:
    told = {
        "machine": {"at": "2026-12-01T00:00:00", "processor": "x", "cores": 2, "nvidia": None},
        "model": "SmolLM2-135M-Instruct",
        "tokens": 64,
        "summary": {},
        "samples": samples,
    }
    path.write_text(json.dumps(told | more))
    return path


def run(batch: int, *, floor_s: float = 0.03, slope_s: float = 0.002, prompt_s: float = 0.04) -> dict[str, float]:
    """What an engine that is just as the model says would measure."""
    first_s, inter_s = prompt_s * batch, math.hypot(floor_s, slope_s * batch)
    return {
        "tokens_per_s": batch * 64 / (first_s + 63 * inter_s),
        "ttft_ms": first_s * 1000,
        "inter_token_ms": inter_s * 1000,
    }


def test_finds_the_curve_again_that_figures_were_made_from(tmp_path: Path) -> None:
    samples = {"stock": {str(batch): [run(batch)] * 3 for batch in (1, 4, 16, 64)}}
    calibration = read_calibration(written(tmp_path / "made.json", samples))
    speed = calibration.speed("stock")
    assert speed.inter_s == pytest.approx((0.03, 0.002), rel=1e-6)
    assert speed.first_token_s(10, 2 * PROMPT_TOKENS) == pytest.approx(0.8)
    assert all(abs(check.error) < 1e-6 for check in calibration.checks("stock"))


def test_an_engine_that_is_otherwise_is_not_called_predicted(tmp_path: Path) -> None:
    samples = {"stock": {str(batch): [run(batch)] for batch in (1, 8, 64, 256)}}
    samples["stock"]["64"] = [run(64, slope_s=0.004)]
    calibration = read_calibration(written(tmp_path / "made.json", samples))
    (check,) = [c for c in calibration.checks("stock") if c.batch == 64 and c.figure == "inter_token_ms"]
    assert not check.holds


def test_two_batch_sizes_are_enough_for_a_speed_but_not_for_a_check(tmp_path: Path) -> None:
    samples = {"stock": {"1": [run(1)], "8": [run(8)]}, "idle": {"1": [run(1)]}}
    calibration = read_calibration(written(tmp_path / "made.json", samples))
    assert calibration.speed("stock").inter_token_s(8, 0) == pytest.approx(run(8)["inter_token_ms"] / 1000)
    assert calibration.checks("stock") == []
    for row in ("idle", "lora-50"):
        with pytest.raises(PlanError, match="two batch sizes"):
            calibration.speed(row)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"machine": 1}', '{"machine": {}, "samples": {"stock": {"one": []}}}']
)
def test_a_file_of_another_kind_names_the_calibration(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(PlanError) as error:
        read_calibration(tmp_path / "x.json")
    assert error.value.field == "calibration"


def test_figures_that_are_none_are_refused(tmp_path: Path) -> None:
    samples = {"stock": {"1": [run(1) | {"ttft_ms": 0.0}], "8": [run(8)]}}
    with pytest.raises(PlanError, match="ttft_ms"):
        read_calibration(written(tmp_path / "made.json", samples))


def test_a_benchmark_of_another_model_is_not_used() -> None:
    assert find_calibration(PRESETS["smollm2-135m"], MEASURED) is not None
    assert find_calibration(PRESETS["llama-3.1-8b"]) is None
    with pytest.raises(PlanError, match="a benchmark of llama"):
        find_calibration(PRESETS["llama-3.1-8b"], MEASURED)
