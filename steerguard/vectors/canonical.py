"""The canonical file: safetensors with tensors `block.<N>` (F32 [hidden_size]) and a fixed set of metadata.

Reading trusts nothing: the header is bounded and parsed before anything is allocated, and the safetensors
library checks the layout (offsets, gaps, trailing bytes). Writing lays the header out by hand, because the
library orders metadata at random and the same vector should always be the same bytes.
"""

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from steerguard.vectors.json_text import parse_object
from steerguard.vectors.vector import FloatArray, SteeringVector, VectorError

FORMAT = "steerguard.vector.v1"
HOOK_POINT = "block_output"
# 126 blocks of 16,384 values (the largest open Llama) take 8.3 MB.
MAX_VECTOR_BYTES = 16 * 1024 * 1024
MAX_HEADER_BYTES = 512 * 1024

_TENSOR_NAME = re.compile(r"block\.(0|[1-9][0-9]{0,3})")


def write_vector(vector: SteeringVector) -> bytes:
    """The canonical file of `vector`; equal vectors give equal bytes. VectorError when it is too big."""
    header: dict[str, object] = {
        "__metadata__": {
            "format": FORMAT,
            "hook_point": HOOK_POINT,
            "base_model": vector.base_model,
            "hidden_size": str(vector.hidden_size),
            "name": vector.name,
            "provenance": json.dumps(dict(vector.provenance), sort_keys=True, ensure_ascii=False),
        }
    }
    row_bytes = 4 * vector.hidden_size
    for position, block in enumerate(vector.layers):
        header[f"block.{block}"] = {
            "dtype": "F32",
            "shape": [vector.hidden_size],
            "data_offsets": [position * row_bytes, (position + 1) * row_bytes],
        }
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    if len(head) > MAX_HEADER_BYTES:
        raise VectorError("header", f"at most {MAX_HEADER_BYTES} bytes", str(len(head)))
    rows = b"".join(row.astype("<f4", copy=False).tobytes() for row in vector.layers.values())
    data = struct.pack("<Q", len(head)) + head + rows
    if len(data) > MAX_VECTOR_BYTES:
        raise VectorError("file", f"at most {MAX_VECTOR_BYTES} bytes", str(len(data)))
    return data


def read_vector(source: bytes | str | os.PathLike[str]) -> SteeringVector:
    """The vector in a canonical file, given as bytes or as a path. Raises VectorError; OSError for a path."""
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    else:
        with Path(source).open("rb") as file:
            data = file.read(MAX_VECTOR_BYTES + 1)
    if len(data) > MAX_VECTOR_BYTES:
        raise VectorError("file", f"at most {MAX_VECTOR_BYTES} bytes", "more")
    metadata = _read_metadata(data)
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise VectorError("file", "safetensors", str(error)[:200]) from None
    layers = dict(_read_row(name, tensor) for name, tensor in tensors)
    return SteeringVector(layers=layers, **metadata)


def read_vectors_dir(folder: str | os.PathLike[str]) -> dict[str, SteeringVector]:
    """Every `<skill>.safetensors` of a folder, by skill name, in name order. VectorError names the file."""
    paths = sorted(Path(folder).iterdir())
    vectors = {}
    for path in paths:
        if path.suffix != ".safetensors" or path.name.startswith("."):
            continue
        try:
            vectors[path.stem] = read_vector(path)
        except VectorError as error:
            raise VectorError(f"{path.name}, {error.field}", error.expected, error.found) from None
    return vectors


def _read_metadata(data: bytes) -> dict[str, Any]:
    """The arguments of SteeringVector that live in the header, checked as far as the constructor can't."""
    if len(data) < 8:
        raise VectorError("file", "safetensors (an 8-byte header length first)", f"{len(data)} bytes")
    (length,) = struct.unpack_from("<Q", data)
    if length > MAX_HEADER_BYTES:
        raise VectorError("header length", f"at most {MAX_HEADER_BYTES} bytes", str(length))
    if length > len(data) - 8:
        raise VectorError("header length", f"at most the {len(data) - 8} bytes that follow", str(length))
    header = parse_object("header", data[8 : 8 + length])
    metadata = header.get("__metadata__")
    if not isinstance(metadata, Mapping):
        raise VectorError("metadata", f"__metadata__ with format {FORMAT}", "none")
    for field, value in (("format", FORMAT), ("hook_point", HOOK_POINT)):
        if metadata.get(field) != value:
            raise VectorError(f"metadata {field}", value, repr(metadata.get(field))[:80])
    hidden_size = metadata.get("hidden_size")
    if not isinstance(hidden_size, str) or not re.fullmatch(r"[1-9][0-9]{0,5}", hidden_size):
        raise VectorError("metadata hidden_size", "a positive integer, as text", repr(hidden_size)[:80])
    provenance = metadata.get("provenance", "{}")
    if not isinstance(provenance, str):
        raise VectorError("metadata provenance", "JSON, as text", type(provenance).__name__)
    return {
        "hidden_size": int(hidden_size),
        "base_model": metadata.get("base_model", ""),
        "name": metadata.get("name", ""),
        "provenance": parse_object("metadata provenance", provenance),
    }


def _read_row(name: str, tensor: Mapping[str, object]) -> tuple[int, FloatArray]:
    match = _TENSOR_NAME.fullmatch(name)
    if not match:
        raise VectorError("tensor name", "block.<N>", repr(name)[:80])
    if tensor["dtype"] != "F32":
        raise VectorError(name, "dtype F32", str(tensor["dtype"]))
    shape = tensor["shape"]
    values = np.frombuffer(tensor["data"], dtype="<f4").reshape(shape)  # type: ignore[call-overload]
    return int(match[1]), values.astype(np.float32)
