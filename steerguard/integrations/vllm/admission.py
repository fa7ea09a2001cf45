"""The front door: a request's steering is checked here, in the process it enters through, or it doesn't enter.

Lives in the API server, or in the process of an offline `LLM`. Holds its own copy of the registered vectors, so
that a request for an unknown one is refused before anything is scheduled; an answer is never silently unsteered.
"""

import contextvars
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from steerguard.blend import (
    Blend,
    BlendError,
    FloatArray,
    Overdose,
    check_components,
    parse_blend,
    sum_row,
)
from steerguard.integrations.vllm.config import PluginConfig
from steerguard.integrations.vllm.wire import PLAN_KEY, SPEC_KEY, STEER_KEYS, encode_plan
from steerguard.vectors import SteeringVector

MAX_CACHED_BLENDS = 4096
ROUNDING_SLACK = 1e-6  # a clamped blend must not be refused for its last bit


@dataclass(frozen=True)
class Admitted:
    """A blend as it will be applied, and how much of the residual stream it is."""

    blend: Blend
    plan: list[Any] | None
    dose: float | None
    """Highest relative dose over blocks and phases; None while the engine's reference norms aren't known."""
    clamped_from: float | None = None
    """The dose that was asked for, where it was scaled down to the limit."""


@dataclass
class Receipt:
    """What admission noted for the HTTP request at hand, for its response headers."""

    admitted: list[Admitted] = field(default_factory=list)

    def usage(self, prompt_tokens: int, completion_tokens: int) -> dict[str, Any] | None:
        """What of a usage report's tokens were steered; None if nothing was.

        Of each prompt all tokens but the last are in the prompt phase; that last one and every answered token but
        the last are what the answer was predicted from, one position for each answered token.
        """
        if not self.admitted:
            return None
        admitted = self.admitted[-1]
        in_prompt = prompt_tokens - len(self.admitted) if admitted.blend.prompt_row else 0
        report: dict[str, Any] = {
            "blend": admitted.blend.digest,
            "prompt_tokens": max(in_prompt, 0),
            "response_tokens": completion_tokens if admitted.blend.response_row else 0,
        }
        if admitted.dose is not None:
            report["dose"] = round(admitted.dose, 4)
        return report


def current_receipt() -> Receipt | None:
    """The receipt of the HTTP request at hand."""
    return _receipt.get()


_receipt: contextvars.ContextVar[Receipt | None] = contextvars.ContextVar("steerguard_receipt", default=None)


@contextmanager
def collect_receipt() -> Iterator[Receipt]:
    """Collects what is admitted inside the block, also in tasks started from it."""
    receipt = Receipt()
    token = _receipt.set(receipt)
    try:
        yield receipt
    finally:
        _receipt.reset(token)


class Admission:
    """Checks blends against one engine: its registered vectors, its shape, its dose limit."""

    def __init__(
        self,
        *,
        num_layers: int,
        hidden_size: int,
        dtype_max: float,
        blend_layers: int,
        config: PluginConfig,
    ) -> None:
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self.dtype_max = dtype_max
        self.blend_layers = blend_layers
        self.dose_ceiling = config.dose_ceiling
        self.max_dose = min(config.max_dose, config.dose_ceiling)
        self.max_vector_bytes = config.vectors_mib << 20
        self.vectors: dict[str, SteeringVector] = {}
        self.norms: dict[int, float] = {}
        self.refused: dict[str, int] = {}
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Admitted] = OrderedDict()

    @property
    def vector_bytes(self) -> int:
        """Bytes of the registered vectors' numbers; each of the engine's processes holds them."""
        return sum(vector.nbytes for vector in self.vectors.values())

    def add(self, vector: SteeringVector) -> None:
        with self._lock:
            self.vectors = {**self.vectors, vector.digest: vector}

    def discard(self, digest: str) -> SteeringVector | None:
        """Requests that name the vector are refused from here on."""
        with self._lock:
            kept = dict(self.vectors)
            vector = kept.pop(digest, None)
            self.vectors = kept
            self._cache.clear()
        return vector

    def set_norms(self, norms: Mapping[int, float]) -> None:
        """Reference norms ‖h‖ per block, against which doses are computed."""
        with self._lock:
            self.norms = dict(norms)
            self._cache.clear()

    def check_vector(self, vector: SteeringVector) -> None:
        """Raises BlendError unless the vector fits this engine's model."""
        if vector.hidden_size != self.hidden_size:
            raise BlendError("hidden_size", f"{self.hidden_size}, this model's", str(vector.hidden_size))
        deepest = max(vector.layers)
        if deepest >= self.num_layers:
            raise BlendError("block index", f"below {self.num_layers}, this model's blocks", str(deepest))

    def admit(self, spec: object) -> Admitted:
        """What of `spec` will be applied. Raises BlendError (UnknownVector, Overdose) naming the field."""
        try:
            key = spec if isinstance(spec, str) else None
            if key is not None and (hit := self._cache.get(key)) is not None:
                return hit
            admitted = self._check(parse_blend(spec))
        except BlendError as error:
            self._count_refusal(type(error).__name__)
            raise
        if key is not None:
            with self._lock:
                self._cache[key] = admitted
                while len(self._cache) > MAX_CACHED_BLENDS:
                    self._cache.popitem(last=False)
        return admitted

    def admit_into(self, extra_args: dict[str, Any] | None) -> dict[str, Any] | None:
        """The extra args with the plan of their steering spec in them; whatever plan a client sent is dropped."""
        self._refuse_skills(extra_args)
        if not extra_args or (SPEC_KEY not in extra_args and PLAN_KEY not in extra_args):
            return extra_args
        kept = {k: v for k, v in extra_args.items() if k != PLAN_KEY}
        if (spec := kept.get(SPEC_KEY)) is not None:
            admitted = self.admit(spec)
            if admitted.plan is not None:
                kept[PLAN_KEY] = admitted.plan
        return kept

    def note(self, extra_args: Mapping[str, Any] | None) -> None:
        """Checks a request before its response starts, and leaves the result for the response's headers."""
        self._refuse_skills(extra_args)
        if not extra_args or (spec := extra_args.get(SPEC_KEY)) is None:
            return
        admitted = self.admit(spec)
        if (receipt := _receipt.get()) is not None:
            receipt.admitted.append(admitted)

    def _refuse_skills(self, extra_args: Mapping[str, Any] | None) -> None:
        """Skill names that nobody has turned into a spec would leave the request unsteered."""
        for key in STEER_KEYS:
            if key in (extra_args or ()):
                self._count_refusal("BlendError")
                raise BlendError(
                    key,
                    f'digests of vectors in "{SPEC_KEY}", or in offline use SteerGuardPlugin.attach(llm) beforehand',
                    "a skill that can't be looked up",
                )

    def _count_refusal(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _check(self, blend: Blend) -> Admitted:
        check_components(blend.components, self.vectors, self.num_layers)
        rows = self._rows(blend)
        for phase, row in rows.items():
            if len(row) > self.blend_layers:
                raise BlendError(
                    f"{SPEC_KEY}.blend",
                    f"at most {self.blend_layers} blocks steered at once (STEERGUARD_MAX_BLEND_LAYERS, "
                    "STEERGUARD_BANK_MIB)",
                    f"{len(row)} in the {phase} phase",
                )
        dose = self._dose(rows)
        limit = self._dose_limit(blend)
        if dose is not None and dose > limit * (1 + ROUNDING_SLACK):
            if blend.on_overdose == "clamp" and np.isfinite(dose):
                scaled = blend.scaled(limit / dose)
                rows = self._rows(scaled)
                self._check_finite(rows)
                return Admitted(scaled, encode_plan(scaled), self._dose(rows), clamped_from=dose)
            block = max((b for row in rows.values() for b in row), key=lambda b: self._block_dose(rows, b))
            raise Overdose(f"{SPEC_KEY}.blend", f"a relative dose of at most {limit:g}", f"{dose:.3g} at block {block}")
        self._check_finite(rows)
        return Admitted(blend, encode_plan(blend), dose)

    def _dose_limit(self, blend: Blend) -> float:
        if blend.max_dose is None:
            return self.max_dose
        if blend.max_dose > self.dose_ceiling:
            raise BlendError(
                f"{SPEC_KEY}.max_dose",
                f"at most {self.dose_ceiling:g}, this engine's ceiling (STEERGUARD_DOSE_CEILING)",
                f"{blend.max_dose:g}",
            )
        return blend.max_dose

    def _rows(self, blend: Blend) -> dict[str, dict[int, FloatArray]]:
        prompt = sum_row((c for c in blend.components if c.adds_in("prompt")), self.vectors)
        if blend.prompt_row == blend.response_row:
            return {"prompt": prompt, "response": prompt}
        return {
            "prompt": prompt,
            "response": sum_row((c for c in blend.components if c.adds_in("response")), self.vectors),
        }

    def _check_finite(self, rows: Mapping[str, Mapping[int, FloatArray]]) -> None:
        """A value that the engine's dtype can't hold would leave Inf in KV blocks that others reuse.

        The stream carries on what each block adds, so it is their sum that must fit. float16 overflows well within
        the dose limit of every single block; half of its range is left to the model's own values.
        """
        limit = self.dtype_max / 2
        for row in rows.values():
            carried = sum((np.abs(values, dtype=np.float64) for values in row.values()), np.zeros(self.hidden_size))
            if not bool(np.all(carried <= limit)):
                raise BlendError(
                    f"{SPEC_KEY}.blend.alpha",
                    f"α·v that the engine's dtype can hold, added up over blocks (at most {limit:.3g})",
                    f"{float(np.max(carried)):.3g}",
                )

    def _dose(self, rows: Mapping[str, Mapping[int, FloatArray]]) -> float | None:
        if not self.norms:
            return None
        blocks = {b for row in rows.values() for b in row}
        return max((self._block_dose(rows, b) for b in blocks), default=0.0)

    def _block_dose(self, rows: Mapping[str, Mapping[int, FloatArray]], block: int) -> float:
        norm = max(float(np.linalg.norm(row[block].astype(np.float64))) for row in rows.values() if block in row)
        return norm / self.norms[block] if block in self.norms else 0.0
