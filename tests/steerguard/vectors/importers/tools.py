"""Files as other tools write them, written by what those tools write with, from vectors by the tool's own numbers.

What each does was read in its source: repeng/extract.py, llama.cpp's cvector-generator.cpp, EasySteer's
extraction/result.py, steering_vectors/steering_vector.py, hidden_directions/extract/pref.py, persona_vectors'
generate_vec.py, activation_steering/steering_vector.py. tests/steerguard/vectors/files holds files that some of them
wrote themselves.
"""

import io
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import torch

Rows = Mapping[int, np.ndarray]


def write_gguf(
    directions: Rows,
    *,
    i32: bool = False,
    texts: Mapping[str, str] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vector.gguf"
        writer = gguf.GGUFWriter(path, "controlvector")
        writer.add_string("controlvector.model_hint", "llama")
        for key, text in (texts or {}).items():
            writer.add_string(key, text)
        for key, number in (numbers or {}).items():
            writer.add_float32(key, number)
        add_count = writer.add_int32 if i32 else writer.add_uint32
        add_count("controlvector.layer_count", len(directions))
        for number, row in directions.items():
            writer.add_tensor(f"direction.{number}", row)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def repeng(directions: Rows) -> bytes:
    return write_gguf(directions)


def llama_cpp(directions: Rows) -> bytes:
    return write_gguf(directions, i32=True)


def easysteer(directions: Rows, *, component: str | None = "hidden_states") -> bytes:
    native = json.dumps({"version": 1, "component": component, "metadata": {"mapping": [["normalize", True]]}})
    return write_gguf(directions, texts={"controlvector.method": "diffmean", "controlvector.easysteer": native})


def easysteer_before_2026(directions: Rows) -> bytes:
    return write_gguf(directions, texts={"controlvector.method": "diffmean"}, numbers={"controlvector.n_positive": 4.0})


def saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@dataclass
class SteeringVector:
    """The class that steering-vectors defines, under its name there."""

    layer_activations: dict[int, torch.Tensor]
    layer_type: str = "decoder_block"


SteeringVector.__module__ = "steering_vectors.steering_vector"


def steering_vectors(directions: Rows, *, layer_type: str = "decoder_block") -> bytes:
    """With the module there for as long as pickle needs to find the class, as in the tool's own process."""
    module: Any = ModuleType(SteeringVector.__module__)
    module.SteeringVector = SteeringVector
    tensors = {number: torch.from_numpy(row) for number, row in directions.items()}
    with patch.dict(sys.modules, {"steering_vectors": ModuleType("steering_vectors"), module.__name__: module}):
        return saved(SteeringVector(tensors, layer_type))


def matrix(directions: Rows, rows: int | None = None) -> np.ndarray:
    size = len(next(iter(directions.values())))
    stack = np.zeros((rows or max(directions) + 1, size), np.float32)
    for number, row in directions.items():
        stack[number] = row
    return stack


def pt_matrix(directions: Rows, dtype: torch.dtype = torch.float32) -> bytes:
    """hidden-directions and persona-vectors: row N is direction N."""
    return saved(torch.from_numpy(matrix(directions)).to(dtype))


def cast(directions: Rows) -> bytes:
    return json.dumps(
        {
            "model_type": "llama",
            "directions": {number: row.tolist() for number, row in directions.items()},
            "explained_variances": {number: 0.5 for number in directions},
        }
    ).encode()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
