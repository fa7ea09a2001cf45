"""`cast`: the `.svec` JSON of IBM's activation-steering (github.com/IBM/activation-steering).

`directions` maps a 0-based block, as text, to its numbers, measured on `hidden_states[block + 1]`. `model_type` is a
kind of model, and `explained_variances` are not needed to steer.
"""

import re
from collections.abc import Mapping

import numpy as np

from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import after_final_norm, as_row
from steerguard.vectors.vector import MAX_TEXT_CHARS, FloatArray, VectorError

_BLOCK = re.compile(r"0|[1-9][0-9]{0,3}")


def read(saved: Mapping[str, object], request: ImportRequest) -> Found:
    hidden_size, _ = request.model()
    directions = saved.get("directions")
    if not isinstance(directions, Mapping) or not directions:
        raise VectorError("directions", "an object of arrays by layer", _kind(directions))
    layers = {}
    for layer, values in directions.items():
        if not _BLOCK.fullmatch(layer):
            raise VectorError("directions", "0-based layers as keys", repr(layer)[:80])
        layers[int(layer)] = _row(f"directions[{layer}]", values, hidden_size)
    model_type = saved.get("model_type")
    hint = {"source_model_hint": model_type[:MAX_TEXT_CHARS]} if isinstance(model_type, str) and model_type else {}
    return Found(layers, "layer N is what block N puts out", after_final_norm(layers, request), hint)


def _row(field: str, values: object, hidden_size: int) -> FloatArray:
    if not isinstance(values, list) or len(values) != hidden_size:
        found = f"{len(values)}" if isinstance(values, list) else _kind(values)
        raise VectorError(field, f"{hidden_size} numbers (hidden_size)", found)
    for value in values:
        if type(value) not in (int, float):
            raise VectorError(field, "numbers", _kind(value))
    try:
        return as_row(field, np.array(values, dtype=np.float64), hidden_size)
    except OverflowError:
        raise VectorError(field, "values that float32 can hold", "larger ones") from None


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
