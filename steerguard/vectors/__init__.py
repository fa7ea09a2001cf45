"""Steering vectors: what they are, what identifies them, and the file they live in.

Needs numpy and safetensors only: the web server, the engine plugin and a laptop all read the same files.
"""

from steerguard.vectors.canonical import (
    MAX_HEADER_BYTES,
    MAX_VECTOR_BYTES,
    read_vector,
    read_vectors_dir,
    write_vector,
)
from steerguard.vectors.vector import SteeringVector, VectorError, base_model_name

__all__ = [
    "MAX_HEADER_BYTES",
    "MAX_VECTOR_BYTES",
    "SteeringVector",
    "VectorError",
    "base_model_name",
    "read_vector",
    "read_vectors_dir",
    "write_vector",
]
