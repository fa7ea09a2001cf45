"""Vectors for other tools. What is exported and imported again has the same numbers, bit for bit.

repeng and llama.cpp read the same GGUF, with `direction.N` for what is added to block N's output; but llama.cpp
rejects a file with `direction.0`.
"""

from collections.abc import Callable, Mapping

from steerguard.vectors.canonical import write_vector
from steerguard.vectors.gguf_file import write_gguf
from steerguard.vectors.vector import SteeringVector, VectorError


def write_repeng(vector: SteeringVector) -> bytes:
    """The GGUF that repeng's ControlVector.import_gguf reads. `model_hint` is the base model's name."""
    values: dict[str, str | int] = {
        "general.architecture": "controlvector",
        "controlvector.model_hint": vector.base_model or "unknown",
        "controlvector.layer_count": len(vector.layers),
    }
    return write_gguf(values, {f"direction.{block}": row for block, row in vector.layers.items()})


def write_llama_cpp(vector: SteeringVector) -> bytes:
    """The same, for llama.cpp's `--control-vector`. Raises VectorError for a vector with block 0.

    llama.cpp adds `direction.N` after block N, so it has the blocks' own numbers. (Those that its generator writes are
    one higher; see importers/llama_cpp.py.)
    """
    if 0 in vector.layers:
        raise VectorError("layers", "block 1 or later, because llama.cpp can't steer block 0", "block 0")
    return write_repeng(vector)


EXPORTS: Mapping[str, tuple[str, Callable[[SteeringVector], bytes]]] = {
    "canonical": ("safetensors", write_vector),
    "repeng": ("gguf", write_repeng),
    "llama.cpp": ("gguf", write_llama_cpp),
}
"""File extension and writer of each format that vectors are exported in."""
