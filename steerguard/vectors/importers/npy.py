"""`npy`: one numpy array, [hidden_size] or [rows, hidden_size], from whatever made it.

An array says no layers. A single row is asked about; a matrix is read by its rows when there are as many as the model
has blocks (`rows=blocks`) or one more (`rows=hidden_states`), and asked about otherwise.
"""

import io
from typing import Any

import numpy as np

from steerguard.vectors.importers.request import CONVENTIONS, Found, ImportRequest
from steerguard.vectors.importers.rows import by_row_count, of_blocks, of_hidden_states, single
from steerguard.vectors.vector import VectorError

MAX_HEADER_BYTES = 4_096


def load(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    """The array of a `.npy` file, of floats and with one or two dimensions. Raises VectorError.

    numpy parses the header; nothing is allocated before its size is what the file has.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise VectorError("npy version", "1.0 or 2.0", f"{version[0]}.{version[1]}")
        read_header: Any = readers[version]  # whose stub lacks the bound
        shape, is_fortran, dtype = read_header(file, max_header_size=MAX_HEADER_BYTES)
    except VectorError:
        raise
    except Exception as error:  # the header is a Python literal, whose parser raises whatever it meets
        raise VectorError("npy header", "what numpy.save writes", str(error).partition("\n")[0][:120]) from None
    if dtype.kind != "f" or dtype.itemsize > 8:
        raise VectorError("npy dtype", "float16, float32 or float64", str(dtype)[:80])
    if len(shape) not in (1, 2) or not all(type(size) is int and size > 0 for size in shape):
        raise VectorError("npy shape", "[hidden_size] or [rows, hidden_size]", str(list(shape))[:80])
    expected = dtype.itemsize * shape[0] * (shape[1] if len(shape) == 2 else 1)
    rest = data[file.tell() :]
    if len(rest) != expected:
        raise VectorError("npy data", f"{expected} bytes for shape {list(shape)}", str(len(rest)))
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if is_fortran else "C")


def read(array: np.ndarray[Any, np.dtype[Any]], request: ImportRequest) -> Found:
    if array.ndim == 1 or (len(array) == 1 and request.rows is None):
        return single("array", array, request)
    rows = request.rows
    if rows is None:
        in_order = by_row_count("array", array, request, "rows", " or ".join(CONVENTIONS["rows"]))
        rows = "hidden_states" if in_order else "blocks"
    return (of_hidden_states if rows == "hidden_states" else of_blocks)("array", array, request)
