"""What benchmarks of this installation say about speed, and how well that predicts what they didn't tell.

Reads the file that `make bench-steering` writes. Two curves are fitted to the medians of each row. Seconds to the first
token grow as a power of the prompt tokens that a batch brings. Between tokens there is a floor (weights are read,
kernels started) and a slope (arithmetic), and the rounded corner between them is √(a² + (b·n)²).
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.planner.errors import PlanError
from jobs.planner.speed import Traffic, batch_s

STEERING_RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "steering.json"
PROMPT_TOKENS = 32  # of every request of that benchmark
TOLERANCE = 0.1
BASE, STEERED, LORA = "stock", "steered 50", "lora-50"
_FIGURES = ("tokens_per_s", "ttft_ms", "inter_token_ms")

Point = tuple[float, float]


@dataclass(frozen=True)
class MeasuredSpeed:
    """The curves of one row. Seconds; n is the batch size."""

    first_s: tuple[float, float]
    """a, k of a · (n · prompt / 32)^k."""
    inter_s: tuple[float, float]
    """a, b of √(a² + (b·n)²)."""

    def first_token_s(self, batch: float, prompt_tokens: float) -> float:
        a, power = self.first_s
        return a * (batch * prompt_tokens / PROMPT_TOKENS) ** power

    def inter_token_s(self, batch: float, context_tokens: float) -> float:
        a, b = self.inter_s
        return math.hypot(a, b * batch)


@dataclass(frozen=True)
class Check:
    """A figure of a batch size that was left out of the fit, against what was measured there."""

    row: str
    batch: int
    figure: str
    predicted: float
    measured: float
    inside: bool
    """The batch size lies between others that were measured; otherwise the curve is drawn on beyond them."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        return abs(self.error) <= TOLERANCE


@dataclass(frozen=True)
class Calibration:
    """Medians of one benchmark, by row and batch size, in the file's units (tokens/s and ms)."""

    path: Path
    model: str
    measured_at: str
    machine: str
    output_tokens: int
    medians: Mapping[str, Mapping[int, Mapping[str, float]]]
    summary: Mapping[str, Any]

    def speed(self, row: str, *, without: int | None = None) -> MeasuredSpeed:
        """The curves of a row, fitted to all of its batch sizes but one. Raises PlanError if there aren't two."""
        points = {batch: figures for batch, figures in self.medians.get(row, {}).items() if batch != without}
        if len(points) < 2:
            raise PlanError("calibration", f"two batch sizes or more of {row!r}", f"{len(points)} in {self.path.name}")
        first = [(n, figures["ttft_ms"] / 1000) for n, figures in points.items()]
        inter = [(n, figures["inter_token_ms"] / 1000) for n, figures in points.items()]
        floor, slope = _fit_line([(n * n, seconds**2) for n, seconds in inter])
        return MeasuredSpeed(_fit_power(first), (math.sqrt(floor), math.sqrt(slope)))

    def checks(self, row: str) -> list[Check]:
        """Each batch size of a row, left out and predicted from the others; none if there are fewer than three."""
        batches = sorted(self.medians.get(row, {}))
        found = []
        for batch in batches if len(batches) > 2 else []:
            speed = self.speed(row, without=batch)
            traffic = Traffic(0, PROMPT_TOKENS, self.output_tokens)
            predicted = {
                "tokens_per_s": batch * self.output_tokens / batch_s(speed, batch, traffic),
                "ttft_ms": speed.first_token_s(batch, PROMPT_TOKENS) * 1000,
                "inter_token_ms": speed.inter_token_s(batch, 0) * 1000,
            }
            inside = batches[0] < batch < batches[-1]
            for figure in _FIGURES:
                measured = self.medians[row][batch][figure]
                found.append(Check(row, batch, figure, predicted[figure], measured, inside))
        return found


def read_calibration(path: Path = STEERING_RESULTS) -> Calibration:
    """What a file of `make bench-steering` holds. Raises PlanError naming `calibration`."""
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PlanError("calibration", "a file that make bench-steering wrote", f"{path}: {error}") from None
    try:
        machine = told["machine"]
        medians = {
            row: {int(batch): {figure: _median(runs, figure) for figure in _FIGURES} for batch, runs in batches.items()}
            for row, batches in told["samples"].items()
        }
        return Calibration(
            path=path,
            model=str(told["model"]),
            measured_at=str(machine["at"]),
            machine=f"{machine.get('nvidia') or machine['processor']}, {machine['cores']} cores",
            output_tokens=int(told["tokens"]),
            medians=medians,
            summary=dict(told["summary"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{path.name}: {type(error).__name__} {error}"
        raise PlanError("calibration", "a file that make bench-steering wrote", found) from None


def _median(runs: Sequence[Mapping[str, float]], figure: str) -> float:
    value = statistics.median(float(run[figure]) for run in runs)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{figure} {value}")
    return value


def _fit_line(points: Sequence[Point]) -> tuple[float, float]:
    """a, b ≥ 0 of y = a + b·x with the least squares of relative errors."""
    weighted = [(1 / y**2, x, y) for x, y in points]
    w = math.fsum(weight for weight, _, _ in weighted)
    wx = math.fsum(weight * x for weight, x, _ in weighted)
    wy = math.fsum(weight * y for weight, _, y in weighted)
    wxx = math.fsum(weight * x * x for weight, x, _ in weighted)
    wxy = math.fsum(weight * x * y for weight, x, y in weighted)
    b = (w * wxy - wx * wy) / (w * wxx - wx * wx)
    a = (wy - b * wx) / w
    if a < 0:
        return 0.0, wxy / wxx
    return (wy / w, 0.0) if b < 0 else (a, b)


def _fit_power(points: Sequence[Point]) -> tuple[float, float]:
    """a, k of y = a · x^k with the least squares of log y."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = statistics.fmean(x for x, _ in logs)
    mean_y = statistics.fmean(y for _, y in logs)
    power = math.fsum((x - mean_x) * (y - mean_y) for x, y in logs) / math.fsum((x - mean_x) ** 2 for x, _ in logs)
    return math.exp(mean_y - power * mean_x), power
