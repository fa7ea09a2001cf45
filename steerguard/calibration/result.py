"""What a calibration found, as typed data with a JSON form (docs/calibration.md describes each field).

The JSON is checked when it is read: it may have been stored with a vector long ago, or come from elsewhere.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from steerguard.vectors import SteeringVector

Zone = Literal["green", "amber", "red"]


@dataclass(frozen=True)
class Estimate:
    """A mean over the prompts with its 95 % confidence interval (bootstrap over prompts)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Figures:
    """Answers to all prompts under one condition."""

    behavior: Mapping[str, Estimate]
    """By measure, in its own unit."""
    perplexity_ratio: Estimate
    distinct_2: Estimate
    repetition: Estimate
    damage: Estimate


@dataclass(frozen=True)
class MeasureInfo:
    """How behavior was measured."""

    name: str
    better: Literal["higher", "lower"]
    unit: str
    source: str


@dataclass(frozen=True)
class PointResult:
    """What one strength at one set of blocks did."""

    layers: tuple[int, ...]
    dose: float
    alpha: float
    zone: Zone
    steered: Figures
    random: Figures
    """The same addition in random directions."""
    effect: Estimate
    """Of the first measure, over unsteered answers; positive is more of the behavior."""
    advantage: Estimate
    """The effect over that of random directions."""
    is_effective: bool
    """Whether the intervals of both lie above 0."""
    sample: str


@dataclass(frozen=True)
class Bound:
    """A dose at which something begins or ends; None stands for beyond the largest one that was tried."""

    dose: float | None
    low: float | None
    high: float | None
    alpha: float | None


@dataclass(frozen=True)
class Window:
    """The zones of a set of blocks, for strengths from 0 up."""

    layers: tuple[int, ...]
    alpha_per_dose: float
    effective_from: Bound | None
    """The smallest dose tried at which the vector is effective; None if it never was."""
    green_to: Bound
    """Where damage reaches 1."""
    red_from: Bound
    """Where damage reaches 2: the point of collapse."""


@dataclass(frozen=True)
class Recommendation:
    """Blocks and strength, or why there are none."""

    layers: tuple[int, ...]
    alpha: float | None
    dose: float | None
    effect: Estimate | None
    reason: str


@dataclass(frozen=True)
class Baseline:
    """Answers without the vector."""

    figures: Figures
    effect: Estimate
    sample: str


@dataclass(frozen=True)
class Calibration:
    """A whole calibration. `vector` is the digest; measures come with the one that decides first."""

    format: Literal["steerguard.calibration.v1"]
    vector: str
    base_model: str
    positions: str
    measures: tuple[MeasureInfo, ...]
    settings: Mapping[str, Any]
    prompts: tuple[str, ...]
    unsteered_perplexity: Estimate
    unsteered: Baseline
    instructed: Baseline | None
    """With the behavior asked for in a system prompt, and no vector; None when no instruction was given."""
    points: tuple[PointResult, ...]
    windows: tuple[Window, ...]
    recommendation: Recommendation

    def stored_with(self, vector: SteeringVector) -> SteeringVector:
        """The same vector (its digest doesn't change) with what a slider needs in its provenance.

        Raises ValueError for another vector.
        """
        if vector.digest != self.vector:
            raise ValueError(f"vector: expected {self.vector}, which was calibrated, found {vector.digest}")
        found = self.recommendation
        summary = {
            "measure": self.measures[0].name,
            "layers": found.layers,
            "alpha": found.alpha,
            "dose": found.dose,
            "windows": [
                {"layers": one.layers, "green_to": one.green_to.alpha, "red_from": one.red_from.alpha}
                for one in self.windows
            ],
        }
        text = json.dumps(_rounded(summary), separators=(",", ":"))
        return replace(vector, provenance={**vector.provenance, "calibration": text})

    def to_json(self) -> bytes:
        return _adapter.dump_json(self, indent=1)

    @staticmethod
    def from_json(data: bytes | str) -> "Calibration":
        """Raises ValueError, naming the field."""
        try:
            return _adapter.validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "file"
            raise ValueError(f"{place}: {first['msg']}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


_adapter = TypeAdapter(Calibration)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a calibration."""
    return _adapter.json_schema()
