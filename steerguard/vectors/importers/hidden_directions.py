"""`hidden-directions`: a tensor [num_layers, hidden_size] or [hidden_size], which hotwire loads too.

Row L is `hidden_states[1:][L]`, what block L puts out; for the last block that is after the final norm. Its
import-vector fills layers without a vector with zeros and may end at the last layer that has one, so short matrices
exist, and zero rows mean "nothing here" (zero_rows=skip). A single row is for whichever layer it is used at. hotwire
also takes a dict and uses the first tensor in it; here there has to be only one.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import after_final_norm, of_blocks, single
from steerguard.vectors.vector import VectorError


def only_array(saved: object) -> object:
    """The one array of a dict, or whatever else it is. Raises VectorError for a dict with more or with none."""
    if not isinstance(saved, Mapping):
        return saved
    arrays = {key: value for key, value in saved.items() if isinstance(value, np.ndarray)}
    if len(arrays) != 1:
        found = ", ".join(repr(key)[:40] for key in list(arrays)[:8]) or "none"
        raise VectorError("file", "a tensor, or a dict with one tensor", f"a dict with {len(arrays)}: {found}")
    return next(iter(arrays.values()))


def read(saved: object, request: ImportRequest) -> Found:
    array = only_array(saved)
    if not isinstance(array, np.ndarray):
        raise VectorError("file", "a tensor", type(array).__name__)
    if array.ndim == 1:
        return single("vector", array, request)
    found = of_blocks("vector", array, request)
    return replace(found, warnings=[*after_final_norm(found.layers, request), *found.warnings])
