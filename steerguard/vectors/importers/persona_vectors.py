"""`persona-vectors`: a tensor [num_layers + 1, hidden_size] (github.com/safety-research/persona_vectors).

Its rows are in the order of Hugging Face's `hidden_states`: row 0 is the embeddings, row L is what block L-1 puts out,
and its own code steers block L-1 with row L. The last row is measured after the model's final norm.
"""

import numpy as np

from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import of_hidden_states
from steerguard.vectors.vector import VectorError


def read(saved: object, request: ImportRequest) -> Found:
    if not isinstance(saved, np.ndarray):
        raise VectorError("file", "a tensor", type(saved).__name__)
    return of_hidden_states("vector", saved, request)
