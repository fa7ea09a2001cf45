"""A steering vector: one float32 array per decoder block, added to what that block puts out.

A vector is identified by the SHA-256 of its numbers, never by its name: two uploads of the same numbers are
the same vector, and a changed vector can't be mistaken for the one it replaced (in a cache, say). Everything
that can be wrong with a vector is refused when one is constructed, so that nothing checks again.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

DIGEST_DOMAIN = b"steerguard.vector.v1"
MAX_HIDDEN_SIZE = 65_536
MAX_BLOCK_INDEX = 1_023
MAX_TEXT_CHARS = 300
MAX_PROVENANCE_ENTRIES = 64
MAX_PROVENANCE_CHARS = 2_000


class VectorError(ValueError):
    """Something that claims to be a steering vector isn't one: which part, what it should be, what it is."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type["VectorError"], tuple[str, str, str]]:
        return VectorError, (self.field, self.expected, self.found)


def base_model_name(model: str | os.PathLike[str]) -> str:
    """The `base_model` of vectors made on a folder or hub id, which is also what engines serve it as.

    A folder's last part; a hub id as it is.
    """
    path = Path(model)
    return path.resolve().name if path.is_absolute() or path.is_dir() else os.fspath(model)


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """One vector for one base model.

    `layers` maps a 0-based decoder-block index to a float32 array [hidden_size], in the units of the model's
    residual stream; `name`, `base_model` and `provenance` describe it and are not part of its identity. The
    arrays are copied, read-only and ordered by block. Raises VectorError.
    """

    layers: Mapping[int, FloatArray]
    hidden_size: int
    base_model: str = ""
    name: str = ""
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_integer("hidden_size", self.hidden_size, 1, MAX_HIDDEN_SIZE)
        _check_text("base_model", self.base_model, MAX_TEXT_CHARS)
        _check_text("name", self.name, MAX_TEXT_CHARS)
        if not isinstance(self.layers, Mapping) or not self.layers:
            raise VectorError("layers", "at least one block", "none")
        for block in self.layers:
            _check_integer("block index", block, 0, MAX_BLOCK_INDEX)
        layers = {
            int(block): _checked_row(block, self.layers[block], self.hidden_size) for block in sorted(self.layers)
        }
        object.__setattr__(self, "hidden_size", int(self.hidden_size))
        object.__setattr__(self, "layers", MappingProxyType(layers))
        object.__setattr__(self, "provenance", MappingProxyType(_checked_provenance(self.provenance)))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the numbers: domain, hidden size, then index and values of each block, ascending.

        Integers are little-endian u32, values little-endian float32. No metadata enters.
        """
        sha = hashlib.sha256(DIGEST_DOMAIN + struct.pack("<I", self.hidden_size))
        for block, row in self.layers.items():
            sha.update(struct.pack("<I", block))
            sha.update(row.astype("<f4", copy=False).tobytes())
        return sha.hexdigest()

    @cached_property
    def norms(self) -> dict[int, float]:
        """The L2 norm of each block's array."""
        return {block: float(np.linalg.norm(row.astype(np.float64))) for block, row in self.layers.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return len(self.layers) * self.hidden_size * np.dtype(np.float32).itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SteeringVector):
            return NotImplemented
        return (self.digest, self.base_model, self.name, self.provenance) == (
            other.digest,
            other.base_model,
            other.name,
            other.provenance,
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Callable[..., "SteeringVector"], tuple[object, ...]]:
        return SteeringVector, (
            dict(self.layers),
            self.hidden_size,
            self.base_model,
            self.name,
            dict(self.provenance),
        )


def _check_integer(field: str, value: object, low: int, high: int) -> None:
    expected = f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise VectorError(field, expected, repr(value)[:80])
    if not low <= value <= high:
        raise VectorError(field, expected, str(value)[:80])


def _check_text(field: str, value: object, max_chars: int) -> None:
    if not isinstance(value, str):
        raise VectorError(field, "text", type(value).__name__)
    if len(value) > max_chars:
        raise VectorError(field, f"at most {max_chars} characters", str(len(value)))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise VectorError(field, "text that UTF-8 can hold", "a lone surrogate") from None


def _checked_row(block: int, row: object, hidden_size: int) -> FloatArray:
    label = f"block {block}"
    if not isinstance(row, np.ndarray) or row.dtype != np.float32:
        found = f"an array of {row.dtype}" if isinstance(row, np.ndarray) else type(row).__name__
        raise VectorError(label, "an array of float32", found)
    if row.shape != (hidden_size,):
        raise VectorError(label, f"shape [{hidden_size}] (hidden_size)", f"shape {list(row.shape)}")
    not_finite = np.count_nonzero(~np.isfinite(row))
    if not_finite:
        raise VectorError(label, "finite values", f"{not_finite} NaN or infinite")
    if not row.any():
        raise VectorError(label, "a direction", "only zeros")
    copy = np.array(row, dtype=np.float32, order="C")
    copy.setflags(write=False)
    return copy


def _checked_provenance(provenance: object) -> dict[str, str]:
    if not isinstance(provenance, Mapping):
        raise VectorError("provenance", "a mapping of text to text", type(provenance).__name__)
    if len(provenance) > MAX_PROVENANCE_ENTRIES:
        raise VectorError("provenance", f"at most {MAX_PROVENANCE_ENTRIES} entries", str(len(provenance)))
    for key, value in provenance.items():
        _check_text("provenance key", key, MAX_TEXT_CHARS)
        _check_text(f"provenance {key!r}", value, MAX_PROVENANCE_CHARS)
    return dict(provenance)
