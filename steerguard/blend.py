"""Blends: what a request asks for, checked, and turned into the rows that an engine adds.

A blend is a list of components (vector, strength α, positions, optionally a subset of the vector's blocks). A
token is in one of two *phases*: `prompt`, or `response` from the last prompt token on (that token predicts the
first answered one). Positions `all` means both. Each phase of a blend is a *row*: per block the float32 sum of
its α·v. Rows are identified by content digests, so equal asks share one row, its memory and its KV blocks.

Knows nothing of any engine; needs numpy only.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

Positions = Literal["all", "prompt", "response"]
Phase = Literal["prompt", "response"]
OnOverdose = Literal["reject", "clamp"]
FloatArray = npt.NDArray[np.float32]

PHASES: tuple[Phase, ...] = get_args(Phase)
MAX_COMPONENTS = 64
MAX_SPEC_BYTES = 32_768
DIGEST_CHARS = 64
UNSTEERED = ""  # the row digest of a phase in which nothing is added


class BlendError(ValueError):
    """A request's blend can't be honored: which field, what was expected, what came. Maps to HTTP 400."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        self.field = field
        self.expected = expected
        self.found = found
        super().__init__(f"{field}: expected {expected}, found {found}")

    def __reduce__(self) -> tuple[type["BlendError"], tuple[str, str, str]]:
        return type(self), (self.field, self.expected, self.found)


class UnknownVector(BlendError):
    """The blend names a vector that the engine doesn't hold."""


class Overdose(BlendError):
    """The blend adds more to the residual stream than the engine or the persona allows."""


class VectorLike(Protocol):
    """What a blend needs of a vector; `steerguard.vectors.SteeringVector` is one."""

    @property
    def digest(self) -> str: ...
    @property
    def layers(self) -> Mapping[int, FloatArray]: ...


@dataclass(frozen=True, order=True)
class Component:
    """One α·v of a blend. `layers` of None means every block that the vector has."""

    vector: str
    alpha: float
    positions: Positions = "all"
    layers: tuple[int, ...] | None = None

    def adds_in(self, phase: Phase) -> bool:
        return self.alpha != 0.0 and self.positions in ("all", phase)


@dataclass(frozen=True)
class Blend:
    """Checked components in canonical order, and the limit on their dose.

    `max_dose` is the highest relative dose ‖Σα·v‖/‖h‖ that may be added at any block; None leaves it to the
    engine. `on_overdose` says whether a higher one is refused or scaled down to the limit.
    """

    components: tuple[Component, ...]
    max_dose: float | None = None
    on_overdose: OnOverdose | None = None

    @cached_property
    def prompt_row(self) -> str:
        """Digest of what is added before the last prompt token; UNSTEERED if nothing."""
        return row_digest(c for c in self.components if c.adds_in("prompt"))

    @cached_property
    def response_row(self) -> str:
        """Digest of what is added from the last prompt token on; UNSTEERED if nothing."""
        return row_digest(c for c in self.components if c.adds_in("response"))

    @cached_property
    def digest(self) -> str:
        """Identifies the blend as applied: both phases, nothing else."""
        return hashlib.sha256(f"steerguard.blend.v1|{self.prompt_row}|{self.response_row}".encode()).hexdigest()

    def scaled(self, factor: float) -> "Blend":
        """The same blend with every α multiplied by `factor`."""
        components = tuple(
            sorted(
                (Component(c.vector, c.alpha * factor, c.positions, c.layers) for c in self.components),
                key=_component_key,
            )
        )
        return Blend(components, self.max_dose, self.on_overdose)


def parse_blend(spec: object, *, field: str = "steerguard") -> Blend:
    """The blend that `spec` (JSON text, or the object it stands for) describes. Raises BlendError.

    Checks everything that can be checked without knowing the engine: shape, types, finiteness, counts. Unknown
    keys are refused, because a misspelled `positions` must not steer what it was meant to spare.
    """
    if isinstance(spec, str | bytes):
        spec = _load_json(spec, field)
    body = _mapping(spec, field, {"blend", "max_dose", "on_overdose"})
    if "blend" not in body:
        raise BlendError(f"{field}.blend", "a list of components", "nothing")
    entries = body["blend"]
    if not isinstance(entries, Sequence) or isinstance(entries, str | bytes):
        raise BlendError(f"{field}.blend", "a list of components", _kind(entries))
    if len(entries) > MAX_COMPONENTS:
        raise BlendError(f"{field}.blend", f"at most {MAX_COMPONENTS} components", f"{len(entries)}")
    components = [_component(entry, f"{field}.blend[{i}]") for i, entry in enumerate(entries)]
    max_dose = body.get("max_dose")
    if max_dose is not None:
        max_dose = _finite(max_dose, f"{field}.max_dose")
        if max_dose <= 0:
            raise BlendError(f"{field}.max_dose", "a number above 0", f"{max_dose:g}")
    on_overdose = body.get("on_overdose")
    if on_overdose is not None:
        on_overdose = _choice(on_overdose, get_args(OnOverdose), f"{field}.on_overdose")
    return Blend(tuple(sorted(components, key=_component_key)), max_dose, on_overdose)


def check_components(
    components: Iterable[Component],
    vectors: Mapping[str, VectorLike],
    num_layers: int,
    *,
    field: str = "steerguard",
) -> None:
    """Raises unless each component's vector is in `vectors` and its blocks exist. UnknownVector, BlendError."""
    for component in components:
        vector = vectors.get(component.vector)
        if vector is None:
            raise UnknownVector(
                f"{field}.blend.vector",
                "a vector registered on this engine",
                f"unknown digest {component.vector}",
            )
        for layer in component.layers or ():
            if layer >= num_layers:
                raise BlendError(
                    f"{field}.blend.layers",
                    f"block indices below {num_layers}, this model's blocks",
                    f"{layer}",
                )
            if layer not in vector.layers:
                raise BlendError(
                    f"{field}.blend.layers",
                    f"blocks that vector {component.vector[:12]}… has ({_listed(vector.layers)})",
                    f"{layer}",
                )


def sum_row(components: Iterable[Component], vectors: Mapping[str, VectorLike]) -> dict[int, FloatArray]:
    """Per block the sum of α·v over `components`: float32 arrays [hidden_size].

    Computed in float64 and rounded once, in canonical order, so that equal rows are equal bit for bit on every
    worker. Values may be infinite where α·v leaves float32: the caller refuses those.
    """
    total: dict[int, npt.NDArray[np.float64]] = {}
    for component in components:
        layers = vectors[component.vector].layers
        for block in component.layers if component.layers is not None else layers:
            added = np.float64(component.alpha) * layers[block].astype(np.float64)
            total[block] = total[block] + added if block in total else added
    with np.errstate(over="ignore"):
        return {block: row.astype(np.float32) for block, row in sorted(total.items())}


def row_digest(components: Iterable[Component]) -> str:
    """SHA-256 (hex) over vector digests, α as float64 and blocks, in canonical order; UNSTEERED if there are none.

    Positions do not enter: a row is what is added where it applies, so the prompt and the response row of an
    `all` blend are the same row.
    """
    sha = hashlib.sha256(b"steerguard.row.v1")
    empty = True
    for c in sorted(components, key=_component_key):
        empty = False
        layers = b"*" if c.layers is None else struct.pack(f"<{len(c.layers)}I", *c.layers)
        sha.update(struct.pack("<64sdI", c.vector.encode(), c.alpha, len(layers)) + layers)
    return UNSTEERED if empty else sha.hexdigest()


def _component_key(c: Component) -> tuple[str, float, str, tuple[int, ...]]:
    return (c.vector, c.alpha, c.positions, c.layers if c.layers is not None else (-1,))


def _component(entry: object, field: str) -> Component:
    body = _mapping(entry, field, {"vector", "alpha", "positions", "layers"})
    digest = body.get("vector")
    if (
        not isinstance(digest, str)
        or len(digest) != DIGEST_CHARS
        or not all(char in "0123456789abcdef" for char in digest)
    ):
        raise BlendError(f"{field}.vector", f"a digest of {DIGEST_CHARS} lower-case hex digits", _shown(digest))
    if "alpha" not in body:
        raise BlendError(f"{field}.alpha", "a number", "nothing")
    positions = _choice(body.get("positions", "all"), get_args(Positions), f"{field}.positions")
    return Component(
        digest,
        _finite(body["alpha"], f"{field}.alpha"),
        positions,
        _layers(body.get("layers"), f"{field}.layers"),
    )


def _choice(value: object, choices: tuple[Any, ...], field: str) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise BlendError(field, " or ".join(f'"{choice}"' for choice in choices), _shown(value))
    return value


def _layers(value: object, field: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise BlendError(field, "a list of block indices", _shown(value))
    for i, layer in enumerate(value):
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < 2**31:
            raise BlendError(f"{field}[{i}]", "a block index, 0 or above", _shown(layer))
    if len(set(value)) != len(value):
        raise BlendError(field, "each block once", _shown(value))
    return tuple(sorted(value))


def _finite(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BlendError(field, "a finite number", _shown(value))
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BlendError(field, "a finite number", _shown(value))
    return number + 0.0  # -0.0 and 0.0 are one strength


def _load_json(text: str | bytes, field: str) -> object:
    if len(text) > MAX_SPEC_BYTES:
        raise BlendError(field, f"at most {MAX_SPEC_BYTES} bytes of JSON", f"{len(text)}")

    def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):  # the last would win, and what was meant by the others be lost
            keys = [key for key, _ in pairs]
            raise BlendError(field, "each key once", f"{_shown(next(k for k in keys if keys.count(k) > 1))} twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once_each)
    except BlendError:
        raise
    except (ValueError, RecursionError) as error:
        raise BlendError(field, "JSON text", f"{_shown(text)} ({type(error).__name__}: {error})"[:300]) from None


def _mapping(value: object, field: str, known: set[str]) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise BlendError(field, "an object", _kind(value))
    for key in value:
        if key not in known:
            raise BlendError(
                f"{field}.{_encodable(str(key)[:40])}",
                f"one of the fields {', '.join(sorted(known))}",
                "an unknown field",
            )
    return value


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


def _encodable(text: str) -> str:
    """`text` with lone surrogates, which JSON can name and UTF-8 can't hold, as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> str:
    return repr(value)[:80]


def _listed(blocks: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(blocks)))
