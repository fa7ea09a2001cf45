"""A safetensors file that a stranger wrote: its header, bounded and checked, and its numbers, a piece at a time.

Nothing is allocated for what the header merely claims. After these checks the safetensors library opens the file
too, so that whatever it refuses (and an engine would fail on) is refused here.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors

from steerguard.adapters.json_file import parse_object
from steerguard.adapters.problems import AdapterError, Problem, Problems, refusal, shorten

MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_TENSORS = 20_000
MAX_NAME_CHARS = 300
PIECE_ITEMS = 1024 * 1024

ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Floats:
    """How a floating dtype's bits are read: the unsigned integer, its bits without sign, those of infinity."""

    bits: str
    magnitude: int
    infinity: int


FLOATS = {
    "F32": Floats("<u4", 0x7FFF_FFFF, 0x7F80_0000),
    "F16": Floats("<u2", 0x7FFF, 0x7C00),
    "BF16": Floats("<u2", 0x7FFF, 0x7F80),
}
"""The dtypes that peft writes adapters in."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is: `start` and `end` are offsets into the file, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Magnitudes:
    """What a tensor's numbers are like: how many are NaN or infinite, and the largest magnitude of the others."""

    not_finite: int
    largest: float


def read_header(path: Path, field: str, *, max_bytes: int) -> dict[str, Tensor]:
    """The tensors of a file of at most `max_bytes`, by name. Raises AdapterError, which calls the file `field`."""
    size = path.stat().st_size
    if size > max_bytes:
        raise refusal(field, f"at most {max_bytes} bytes", f"{size} bytes")
    if size < 8:
        raise refusal(field, "safetensors (an 8-byte header length first)", f"{size} bytes")
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(MAX_HEADER_BYTES, size - 8):
            bound = f"a header of at most {min(MAX_HEADER_BYTES, size - 8)} bytes"
            raise refusal(field, bound, f"a header length of {length}")
        header = parse_object(file.read(length), f"{field} header")
    header.pop("__metadata__", None)
    tensors = _read_entries(header, field, 8 + length)
    _check_layout(tensors, field, 8 + length, size)
    try:
        with safetensors.safe_open(path, framework="np") as opened:
            known = set(opened.keys())
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise refusal(field, "a file that the safetensors library opens", str(error)[:200]) from None
    if known != set(tensors):
        raise refusal(field, "the same tensors as the safetensors library finds", f"{len(known)} of {len(tensors)}")
    return tensors


def pieces(path: Path, tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
    """The items of a tensor of one of the FLOATS as unsigned integers, PIECE_ITEMS at a time.

    Raises OSError when the file has become shorter than its header says.
    """
    bits = np.dtype(FLOATS[tensor.dtype].bits)
    left = tensor.end - tensor.start
    with path.open("rb") as file:
        file.seek(tensor.start)
        while left:
            data = file.read(min(left, PIECE_ITEMS * bits.itemsize))
            if not data or len(data) % bits.itemsize:
                raise OSError(f"{path.name} ended inside {tensor.name}")
            left -= len(data)
            yield np.frombuffer(data, dtype=bits)


def as_float32(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    """The numbers that `pieces` gives the bits of; numpy has no bfloat16."""
    if dtype == "BF16":
        return (bits.astype("<u4") << 16).view("<f4")
    return bits.view("<f2" if dtype == "F16" else "<f4").astype(np.float32)


def measure(path: Path, tensor: Tensor) -> Magnitudes:
    """Reads a tensor of one of the FLOATS through."""
    floats = FLOATS[tensor.dtype]
    not_finite = 0
    largest = 0
    for piece in pieces(path, tensor):
        magnitudes = piece & piece.dtype.type(floats.magnitude)
        finite = magnitudes < floats.infinity
        not_finite += magnitudes.size - int(np.count_nonzero(finite))
        largest = max(largest, int(magnitudes.max(initial=0, where=finite)))
    return Magnitudes(not_finite, float(as_float32(np.array([largest], dtype=floats.bits), tensor.dtype)[0]))


def _read_entries(header: dict[str, Any], field: str, data_start: int) -> dict[str, Tensor]:
    if len(header) > MAX_TENSORS:
        raise refusal(field, f"at most {MAX_TENSORS} tensors", str(len(header)))
    problems = Problems()
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        label = name or f"{field} header"
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            problems.add(label, f"a name of 1 to {MAX_NAME_CHARS} printable characters", name)
        elif not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            problems.add(label, "dtype, shape and data_offsets in the header", shorten(entry))
        elif not isinstance(entry["dtype"], str) or entry["dtype"] not in ITEM_BITS:
            problems.add(label, "a dtype of safetensors", entry["dtype"])
        elif not _are_counts(entry["shape"]) or len(entry["shape"]) > 8:
            problems.add(label, "a shape of whole numbers", entry["shape"])
        elif not _are_counts(entry["data_offsets"]) or len(entry["data_offsets"]) != 2:
            problems.add(label, "data_offsets of two whole numbers", entry["data_offsets"])
        else:
            start, end = entry["data_offsets"]
            size = math.prod(entry["shape"]) * ITEM_BITS[entry["dtype"]] // 8
            if end - start != size:
                problems.add(label, f"{size} bytes, as its shape and dtype say", f"data_offsets {[start, end]}")
            tensors[name] = Tensor(name, entry["dtype"], tuple(entry["shape"]), data_start + start, data_start + end)
    problems.raise_if_any()
    return tensors


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _check_layout(tensors: dict[str, Tensor], field: str, data_start: int, size: int) -> None:
    """The tensors fill the file, one after the other, with neither gaps nor overlaps."""
    at = data_start
    for tensor in sorted(tensors.values(), key=lambda one: (one.start, one.end)):
        if tensor.start != at:
            how = "an overlap" if tensor.start < at else "a gap"
            found = f"{how} before offset {tensor.start - data_start}"
            raise AdapterError([Problem(shorten(tensor.name), f"data from offset {at - data_start} on", found)])
        at = tensor.end
    if at != size:
        how = "truncated" if at > size else "trailing bytes"
        raise refusal(field, f"{at} bytes, as its header says", f"{size} bytes ({how})")
