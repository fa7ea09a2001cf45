"""GGUF, as far as vector files use it: a header of keys and values, and one-dimensional float tensors.

The format is ggml's (ggml/docs/gguf.md). The `gguf` package reads and writes it too, and the tests hold this module
against it; but its reader wants a path, and takes counts and lengths from the file at their word. A header has to be
walked with bounds before anything may believe it, and then everything is known.

Little-endian, versions 2 and 3. Every length is checked against what is left of the file before anything is read.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from steerguard.vectors.vector import MAX_BLOCK_INDEX, FloatArray, VectorError

MAGIC = b"GGUF"
MAX_KEYS = 256
MAX_TENSORS = MAX_BLOCK_INDEX + 1
MAX_NAME_BYTES = 64  # GGML_MAX_NAME
MAX_KEY_BYTES = 1_024
MAX_TEXT_BYTES = 256 * 1024
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
MAX_ALIGNMENT = 65_536
DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY, _BOOL = 8, 9, 7
# GGUF's type numbers, as struct has them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
UINT32, INT32 = 4, 5
_F32, _F16, _BF16 = 0, 1, 30
_FLOAT_BYTES = {_F32: 4, _F16: 2, _BF16: 2}
_TENSOR_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 8: "Q8_0", 24: "I8", 26: "I32", 28: "F64", 30: "BF16"}


@dataclass(frozen=True)
class GgufValue:
    """A value of the header and its GGUF type number. An array's items are not kept: no vector file needs them."""

    kind: int
    value: str | int | float | bool | None


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file: its dimensions as written, and its values as float32 [elements]."""

    name: str
    shape: tuple[int, ...]
    values: FloatArray


@dataclass(frozen=True)
class GgufFile:
    values: Mapping[str, GgufValue]
    tensors: tuple[GgufTensor, ...]

    def text(self, key: str) -> str | None:
        """The value of `key` if it is a text."""
        found = self.values.get(key)
        return found.value if found is not None and isinstance(found.value, str) else None


def read_gguf(data: bytes) -> GgufFile:
    """Raises VectorError for anything but a whole little-endian GGUF file of float tensors."""
    reader = _Reader(data)
    if reader.take(4, "magic") != MAGIC:
        raise VectorError("file", "GGUF", f"bytes {data[:4].hex()}")
    version = int(reader.number("I", "version"))
    if version not in (2, 3):
        big_endian = version and version & 0xFFFF == 0
        raise VectorError("version", "2 or 3, little-endian", "a big-endian file" if big_endian else str(version))
    tensor_count = reader.count("Q", "tensor count", MAX_TENSORS)
    key_count = reader.count("Q", "key count", MAX_KEYS)
    values: dict[str, GgufValue] = {}
    for _ in range(key_count):
        key = reader.text("key", MAX_KEY_BYTES)
        if key in values:
            raise VectorError("key", "each key once", f"{key[:80]!r} twice")
        values[key] = reader.value(key)
    infos: dict[str, _Info] = {}
    for _ in range(tensor_count):
        name, info = _read_info(reader)
        if name in infos:
            raise VectorError("tensor", "each tensor once", f"{name!r} twice")
        infos[name] = info
    return GgufFile(values=values, tensors=_read_tensors(data, reader.position, _alignment(values), infos))


def write_gguf(values: Mapping[str, str | int], tensors: Mapping[str, FloatArray]) -> bytes:
    """A GGUF file, version 3: texts as strings, integers as u32, tensors as F32 [elements]."""
    head = MAGIC + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        head += _text_bytes(key)
        if isinstance(value, str):
            head += struct.pack("<I", _STRING) + _text_bytes(value)
        else:
            head += struct.pack("<II", UINT32, value)
    offset = 0
    for name, row in tensors.items():
        head += _text_bytes(name) + struct.pack("<IQIQ", 1, row.size, _F32, offset)
        offset = _aligned(offset + 4 * row.size, DEFAULT_ALIGNMENT)
    head += bytes(_aligned(len(head), DEFAULT_ALIGNMENT) - len(head))
    rows = (row.astype("<f4", copy=False).tobytes() for row in tensors.values())
    return head + b"".join(row + bytes(_aligned(len(row), DEFAULT_ALIGNMENT) - len(row)) for row in rows)


class _Reader:
    """Takes parts off the front of the file, never more than there is."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int, what: str) -> bytes:
        left = len(self.data) - self.position
        if size > left:
            raise VectorError(what, f"{size} bytes", f"the end of the file after {left}")
        self.position += size
        return self.data[self.position - size : self.position]

    def number(self, form: str, what: str) -> int | float:
        found: int | float = struct.unpack("<" + form, self.take(struct.calcsize("<" + form), what))[0]
        return found

    def count(self, form: str, what: str, at_most: int) -> int:
        found = int(self.number(form, what))
        if found > at_most:
            raise VectorError(what, f"at most {at_most}", str(found))
        return found

    def text(self, what: str, at_most: int = MAX_TEXT_BYTES) -> str:
        size = self.count("Q", f"length of {what}", at_most)
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError:
            raise VectorError(what, "UTF-8", "other bytes") from None

    def value(self, key: str) -> GgufValue:
        what = f"value of {key[:80]!r}"
        kind = int(self.number("I", what))
        if kind == _STRING:
            return GgufValue(kind, self.text(what))
        if kind == _ARRAY:
            self._skip_array(what)
            return GgufValue(kind, None)
        if kind not in _SCALARS:
            raise VectorError(what, "a GGUF type", f"type {kind}")
        number = self.number(_SCALARS[kind], what)
        return GgufValue(kind, bool(number) if kind == _BOOL else number)

    def _skip_array(self, what: str) -> None:
        kind = int(self.number("I", what))
        length = int(self.number("Q", what))
        if kind in _SCALARS:
            self.take(length * struct.calcsize("<" + _SCALARS[kind]), what)
        elif kind == _STRING and length <= len(self.data):
            for _ in range(length):
                self.take(self.count("Q", what, MAX_TEXT_BYTES), what)
        else:
            raise VectorError(what, "an array of numbers or texts", f"{length} of type {kind}")


_Info = tuple[tuple[int, ...], int, int]
"""Shape, type and offset of a tensor."""


def _read_info(reader: _Reader) -> tuple[str, _Info]:
    name = reader.text("tensor name", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    shape = tuple(
        int(reader.number("Q", what)) for _ in range(reader.count("I", f"{what}, dimensions", MAX_DIMENSIONS))
    )
    kind = int(reader.number("I", what))
    if kind not in _FLOAT_BYTES:
        raise VectorError(what, "dtype F32, F16 or BF16", _TENSOR_TYPES.get(kind, f"type {kind}"))
    return name, (shape, kind, int(reader.number("Q", what)))


def _read_tensors(data: bytes, header_end: int, alignment: int, infos: Mapping[str, _Info]) -> tuple[GgufTensor, ...]:
    """Tensors lie one after the other in the order of their infos, each padded to the alignment."""
    start = _aligned(header_end, alignment)
    tensors = []
    expected = 0
    for name, (shape, kind, offset) in infos.items():
        size = prod(shape) * _FLOAT_BYTES[kind]
        if offset != expected:
            raise VectorError(f"tensor {name!r}", f"offset {expected}, after the tensor before it", str(offset))
        begin = start + offset
        if size > len(data) - begin:
            left = max(0, len(data) - begin)
            raise VectorError(f"tensor {name!r}", f"{size} bytes", f"the end of the file after {left}")
        tensors.append(GgufTensor(name, shape, _as_float32(data[begin : begin + size], kind)))
        expected = _aligned(offset + size, alignment)
    # Some writers pad the last tensor too.
    end = start + expected if infos else len(data)
    if len(data) > end:
        raise VectorError("file", f"{end} bytes, as its header says", str(len(data)))
    return tuple(tensors)


def _as_float32(data: bytes, kind: int) -> FloatArray:
    if kind == _BF16:
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32)
    return np.frombuffer(data, "<f4" if kind == _F32 else "<f2").astype(np.float32)


def _alignment(values: Mapping[str, GgufValue]) -> int:
    found = values.get("general.alignment", GgufValue(UINT32, DEFAULT_ALIGNMENT))
    alignment = found.value
    if (
        found.kind != UINT32
        or not isinstance(alignment, int)
        or not 0 < alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise VectorError(
            "general.alignment", f"a power of two up to {MAX_ALIGNMENT}, as u32", f"{alignment!r} of type {found.kind}"
        )
    return alignment


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _text_bytes(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
