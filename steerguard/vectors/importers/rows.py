"""Arrays of other tools as rows of ours: float32, of the model's width, one per block."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from steerguard.vectors.importers.request import Found, ImportRequest, Unanswered
from steerguard.vectors.vector import FloatArray, VectorError

Array = np.ndarray[Any, np.dtype[Any]]

_EXACT = (np.float16, np.float32)


def as_row(field: str, values: object, hidden_size: int) -> FloatArray:
    """`values` [hidden_size], or [1, hidden_size], as float32. Raises VectorError for another shape or dtype."""
    if not isinstance(values, np.ndarray):
        raise VectorError(field, "an array", type(values).__name__)
    row = values[0] if values.ndim == 2 and len(values) == 1 else values
    if row.shape != (hidden_size,):
        raise VectorError(field, f"shape [{hidden_size}] (hidden_size)", f"shape {list(values.shape)[:8]}")
    return as_float32(field, row)


def as_float32(field: str, values: Array) -> FloatArray:
    """Raises VectorError for anything but floats, and for a number that float32 hasn't got."""
    if values.dtype.kind != "f" or values.dtype.itemsize > 8:
        raise VectorError(field, "dtype float16, float32 or float64", str(values.dtype))
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if np.isinf(narrow).any() and np.isfinite(values).all():
        raise VectorError(field, "values that float32 can hold", "larger ones")
    return narrow


def rounding(*arrays: Array) -> list[str]:
    """The warning that belongs to arrays of float64."""
    wide = any(array.dtype.type not in _EXACT for array in arrays)
    return ["float64 values were rounded to float32"] if wide else []


def single(field: str, values: Array, request: ImportRequest) -> Found:
    """One vector [hidden_size] or [1, hidden_size], at the block that the request says. Raises Unanswered."""
    hidden_size, _ = request.model()
    row = as_row(field, values, hidden_size)
    block = request.place()
    return Found({block: row}, f"one vector, put at block {block} as asked", rounding(values))


def of_blocks(field: str, matrix: Array, request: ImportRequest) -> Found:
    """A matrix [up to num_layers, hidden_size] whose row L is block L's."""
    _, num_layers = _check_width(field, matrix, request)
    if len(matrix) > num_layers:
        hint = ", as many as persona-vectors writes" if len(matrix) == num_layers + 1 else ""
        raise VectorError(field, f"at most {num_layers} rows, one a block", f"{len(matrix)}{hint}")
    layers, warnings = _rows(field, matrix, request, first_row=0)
    if len(matrix) < num_layers:
        warnings.append(f"{len(matrix)} rows for a model of {num_layers} blocks: the last ones get no vector")
    return Found(layers, "row L is what block L puts out", [*rounding(matrix), *warnings])


def of_hidden_states(field: str, matrix: Array, request: ImportRequest) -> Found:
    """A matrix [num_layers + 1, hidden_size] in the order of Hugging Face's `hidden_states`: row 0 is embeddings."""
    _, num_layers = _check_width(field, matrix, request)
    if len(matrix) != num_layers + 1:
        raise VectorError(
            field, f"{num_layers + 1} rows, the embeddings' and one a block", f"{len(matrix)} for {num_layers} blocks"
        )
    layers, warnings = _rows(field, matrix, request, first_row=1)
    return Found(
        layers,
        "row L is what block L-1 puts out; row 0, the embeddings, is left out",
        [*rounding(matrix), *after_final_norm(layers, request), *warnings],
    )


def after_final_norm(layers: Iterable[int], request: ImportRequest) -> list[str]:
    """The warning for tools that read `hidden_states`, whose last entry comes after the final norm."""
    _, num_layers = request.model()
    if num_layers - 1 not in layers:
        return []
    return [
        f"block {num_layers - 1}'s vector was measured after the model's final norm, not on what the block puts out"
    ]


def check_blocks(layers: dict[int, FloatArray], num_layers: int) -> None:
    """Raises VectorError for a block that the model hasn't got."""
    for block in layers:
        if block >= num_layers:
            raise VectorError(f"block {block}", f"blocks 0 to {num_layers - 1} of the model", str(block))


def by_row_count(field: str, matrix: Array, request: ImportRequest, argument: str, choices: str) -> bool:
    """Whether a matrix is in the order of `hidden_states`, by its rows. Raises Unanswered where they don't say."""
    _, num_layers = _check_width(field, matrix, request)
    if len(matrix) == num_layers + 1:
        return True
    if len(matrix) == num_layers:
        return False
    if len(matrix) > num_layers:
        raise VectorError(field, f"at most {num_layers + 1} rows for {num_layers} blocks", str(len(matrix)))
    raise Unanswered(
        argument,
        choices,
        f"the file has {len(matrix)} rows for {num_layers} blocks, and doesn't say which blocks they belong to",
    )


def _check_width(field: str, matrix: Array, request: ImportRequest) -> tuple[int, int]:
    hidden_size, num_layers = request.model()
    if matrix.ndim != 2 or matrix.shape[1] != hidden_size:
        raise VectorError(
            field, f"shape [rows, {hidden_size}] (hidden_size), or [{hidden_size}]", f"shape {list(matrix.shape)[:8]}"
        )
    return hidden_size, num_layers


def _rows(
    field: str, matrix: Array, request: ImportRequest, *, first_row: int
) -> tuple[dict[int, FloatArray], list[str]]:
    """A row per block, from `first_row` on; rows of zeros are refused or skipped, as the request says."""
    layers = {}
    zeros = []
    for number in range(first_row, len(matrix)):
        row = as_float32(f"{field}, row {number}", matrix[number])
        if row.any():
            layers[number - first_row] = row
        else:
            zeros.append(number)
    if zeros and request.zero_rows == "refuse":
        raise VectorError(
            f"{field}, row {zeros[0]}", "a direction (zero_rows=skip leaves rows of zeros out)", "only zeros"
        )
    named = ", ".join(map(str, zeros[:8])) + (", …" if len(zeros) > 8 else "")
    return layers, [f"rows of zeros left out: {named}"] if zeros else []
