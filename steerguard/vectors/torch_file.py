"""What `torch.save` wrote, as plain Python and numpy, without running anything that the file says.

`torch.load(weights_only=True)` makes tensors and containers and nothing else. What vector files need beside them are
stand-ins of ours: they take the values and do nothing. Before torch sees the file, its archive is checked and written
anew, uncompressed, so that there is one reading of it and no bomb, and the globals that its pickle asks for are held
against GLOBALS, which is shorter than torch's own list. torch is imported when a file is read, and only then.
"""

import io
import pickletools
import threading
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steerguard.vectors.vector import FloatArray, VectorError

ZIP_MAGIC = b"PK\x03\x04"
MAX_RECORDS = 4_096
MAX_PICKLE_BYTES = 4 * 1024 * 1024
"""numpy's arrays are in the pickle itself; torch's are not."""
MAX_ITEMS = 16_384
MAX_VALUES = 16 * 1024 * 1024
"""Of all arrays of a file together: what a canonical file holds four times."""

_FLOATS = {"f2": np.float16, "f4": np.float32, "f8": np.float64}
_loading = threading.Lock()
"""torch keeps the allow-list of a load in a global."""


@dataclass
class SavedSteeringVector:
    """Stands in for `steering_vectors.SteeringVector`: what it held. Unchecked."""

    layer_activations: Any = None
    layer_type: Any = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise VectorError("SteeringVector", "a state of named values", type(state).__name__)
        self.layer_activations = state.get("layer_activations")
        self.layer_type = state.get("layer_type", "decoder_block")


def read_torch(data: bytes) -> object:
    """What the file holds: arrays [any shape] of float16, 32 or 64, in dicts, lists and SavedSteeringVectors.

    bfloat16 comes as float32. Raises VectorError for another file, for a pickle that asks for anything that isn't on
    the list, for tensors of other types, and without torch.
    """
    clean = _rewritten(data)
    try:
        import torch
    except ImportError:
        raise VectorError("file", "PyTorch to be installed, which reads .pt files", "none") from None

    with _loading, torch.serialization.safe_globals(_allowed()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = torch.load(io.BytesIO(clean), map_location="cpu", weights_only=True)
        except VectorError:
            raise
        except Exception as error:  # torch's reader raises whatever a wrong byte leads it to
            raise VectorError("file", "tensors as torch.save writes them", _reason(error)) from None
        try:
            return _Conversion().plain(loaded, depth=0)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise VectorError("tensor", "plain numbers", _reason(error)) from None


def _rewritten(data: bytes) -> bytes:
    """The archive with the same records, stored anew. Raises VectorError for one that torch would not have written."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries, len(data))
            clean = io.BytesIO()
            with zipfile.ZipFile(clean, "w", zipfile.ZIP_STORED) as copy:
                for entry in entries:
                    record = archive.read(entry)
                    if entry.filename.endswith("/data.pkl"):
                        record = _with_stand_ins(record)
                    copy.writestr(zipfile.ZipInfo(entry.filename), record)
            return clean.getvalue()
    except VectorError:
        raise
    except Exception as error:  # zipfile raises BadZipFile, and struct.error, EOFError, OverflowError, … before it
        raise VectorError("file", "a zip archive as torch.save writes it", _reason(error)) from None


def _check_entries(entries: list[zipfile.ZipInfo], file_bytes: int) -> None:
    if len(entries) > MAX_RECORDS:
        raise VectorError("file", f"at most {MAX_RECORDS} records", str(len(entries)))
    names = [entry.filename for entry in entries]
    if len(set(names)) < len(names):
        raise VectorError("file", "each record once", "one twice")
    pickles = [entry for entry in entries if entry.filename.count("/") == 1 and entry.filename.endswith("/data.pkl")]
    if len(pickles) != 1:
        found = "an .npz archive" if names and all(name.endswith(".npy") for name in names) else f"{len(pickles)}"
        raise VectorError("file", "torch.save's archive, with one data.pkl", found)
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise VectorError("file", "records stored as they are", f"{entry.filename[:80]!r} compressed or encrypted")
    total = sum(entry.file_size for entry in entries)
    if total > file_bytes:
        raise VectorError("file", f"records that fit its {file_bytes} bytes", f"{total} bytes of them")
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        raise VectorError("data.pkl", f"at most {MAX_PICKLE_BYTES} bytes", str(pickles[0].file_size))


def _with_stand_ins(pickle: bytes) -> bytes:
    """The pickle with every global by its name in GLOBALS. Raises VectorError for another one."""
    parts = []
    copied = 0
    for operation, argument, position in pickletools.genops(pickle):
        if operation.name not in ("GLOBAL", "STACK_GLOBAL", "INST"):
            continue
        assert position is not None
        name = str(argument).replace(" ", ".")
        raw = b"c" + str(argument).replace(" ", "\n").encode() + b"\n"  # unlike the argument, not unescaped
        if name not in GLOBALS or not pickle.startswith(raw, position):
            raise VectorError("file", "a pickle of tensors and arrays", f"one that asks for {name[:80]}")
        parts += [pickle[copied:position], b"c" + GLOBALS[name].replace(" ", "\n").encode() + b"\n"]
        copied = position + len(raw)
    return b"".join([*parts, pickle[copied:]])


class _PickledType:
    """Stands in for numpy's ndarray as the argument of `_reconstruct`."""


class _PickledDtype:
    """Stands in for numpy's dtype: its name, such as f4, and its byte order."""

    def __init__(self, name: Any = None, *_flags: Any) -> None:
        self.name = name
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


class _PickledArray:
    """Stands in for numpy's ndarray: what its pickle says of it. Unchecked."""

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def plain(self) -> np.ndarray[Any, Any]:
        """[shape]. Raises VectorError."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise VectorError("array", "numpy's pickle of one", "something else")
        _version, shape, dtype, is_fortran, raw = self.state
        if not isinstance(dtype, _PickledDtype) or dtype.name not in _FLOATS or dtype.order not in ("<", ">", "="):
            found = dtype.name if isinstance(dtype, _PickledDtype) else type(dtype).__name__
            raise VectorError("array", "dtype float16, float32 or float64", repr(found)[:80])
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise VectorError("array", "a shape", repr(shape)[:80])
        kind = np.dtype(_FLOATS[dtype.name]).newbyteorder(">" if dtype.order == ">" else "<")
        count = 1
        for size in shape:
            count *= size
        if not isinstance(raw, bytes) or len(raw) != count * kind.itemsize:
            found = f"{len(raw)} bytes" if isinstance(raw, bytes) else type(raw).__name__
            raise VectorError("array", f"{count * kind.itemsize} bytes for shape {list(shape)[:8]}", found)
        values = np.frombuffer(raw, kind).reshape(shape, order="F" if is_fortran else "C")
        return values.astype(kind.newbyteorder("="))


def _reconstruct(_type: Any, _shape: Any, _code: Any) -> _PickledArray:
    """Stands in for numpy's function of that name, which makes the array whose state comes next."""
    return _PickledArray()


def _encode(text: Any, encoding: Any = None) -> bytes:
    """Stands in for `_codecs.encode`, by which protocol 2 writes bytes; other codecs take time, or more."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise VectorError("array", "bytes as latin1", repr(encoding)[:80])
    return text.encode("latin1")


_STAND_INS: dict[str, Any] = {
    "steering_vectors.steering_vector.SteeringVector": SavedSteeringVector,
    "numpy.ndarray": _PickledType,
    "numpy.dtype": _PickledDtype,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "_codecs.encode": _encode,
}
_STORAGES = ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool")
_TENSORS = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    "torch.nn.parameter Parameter",
    *(f"torch {kind}Storage" for kind in _STORAGES),
    "torch.storage UntypedStorage",
)
GLOBALS: Mapping[str, str] = {
    **{name.replace(" ", "."): name for name in _TENSORS},
    # Under names of our own, because torch prefers what is on its list: the real `_codecs.encode`, for one.
    **{name: f"steerguard_stand_ins {name.replace('.', '_')}" for name in _STAND_INS},
}
"""What a pickle may ask for, and what it gets: module and name."""


def _allowed() -> list[Any]:
    stand_ins = [(stand_in, GLOBALS[name].replace(" ", ".")) for name, stand_in in _STAND_INS.items()]
    return [*stand_ins, (_PickledArray, "steerguard_stand_ins.array")]  # nobody can ask for it, but it has a state


class _Conversion:
    """Tensors to arrays, within a budget: a view can claim more values than its storage holds."""

    def __init__(self) -> None:
        self.values_left = MAX_VALUES
        self.items_left = MAX_ITEMS

    def plain(self, value: Any, depth: int) -> object:
        import torch

        self.items_left -= 1
        if self.items_left < 0:
            raise VectorError("file", f"at most {MAX_ITEMS} items", "more")
        if isinstance(value, torch.Tensor):
            return self._array(value)
        if isinstance(value, _PickledArray):
            return value.plain()
        if isinstance(value, SavedSteeringVector):
            return SavedSteeringVector(self.plain(value.layer_activations, depth + 1), value.layer_type)
        if depth > 4:
            raise VectorError("file", "arrays at most four levels deep", "more levels")
        if isinstance(value, Mapping):
            return {key: self.plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(inner, depth + 1) for inner in value]
        return value

    def _array(self, tensor: Any) -> FloatArray:
        import torch

        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise VectorError("tensor", "a dense one", f"{tensor.layout} on {tensor.device}")
        if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            found = str(tensor.dtype).removeprefix("torch.")
            raise VectorError("tensor", "dtype float16, bfloat16, float32 or float64", found)
        self.values_left -= tensor.numel()
        if self.values_left < 0:
            raise VectorError("tensor", f"at most {MAX_VALUES} values in all", f"shape {list(tensor.shape)[:8]}")
        tensor = tensor.detach()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.float()
        array: FloatArray = tensor.contiguous().numpy()
        return array


def _reason(error: Exception) -> str:
    """What a library says, in short and without its advice to trust the file."""
    text = str(error).partition("Please file an issue")[0]
    return " ".join(text.partition("WeightsUnpickler error: ")[2].split())[:120] or text[:120] or type(error).__name__
