"""`canonical`: SteerGuard's own safetensors file, which says everything itself."""

from steerguard.vectors.canonical import read_vector
from steerguard.vectors.importers.request import ImportRequest
from steerguard.vectors.importers.source import Source
from steerguard.vectors.vector import SteeringVector, VectorError


def read(source: Source, request: ImportRequest) -> SteeringVector:
    """The vector as it is; the request's model is held against it, where it names one. Raises VectorError."""
    vector = read_vector(source.data)
    if request.hidden_size not in (None, vector.hidden_size):
        raise VectorError("file", f"hidden_size {request.hidden_size}", str(vector.hidden_size))
    return vector
