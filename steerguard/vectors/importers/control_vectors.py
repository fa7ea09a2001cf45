"""The GGUF files that hold `direction.<N>` tensors: repeng's, llama.cpp's and EasySteer's.

All three have `general.architecture = controlvector`, and N means another block in one of them, so which tool wrote a
file matters. Each leaves a trace: EasySteer a `controlvector.method`, llama.cpp's generator a `layer_count` of type
i32, repeng one of type u32. Without a trace nothing is guessed.
"""

import re

from steerguard.vectors.gguf_file import INT32, UINT32, GgufFile
from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import as_row
from steerguard.vectors.vector import MAX_BLOCK_INDEX, MAX_TEXT_CHARS, FloatArray, VectorError

ARCHITECTURE = "controlvector"
_DIRECTION = re.compile(r"direction\.(0|[1-9][0-9]{0,5})")


def written_by(file: GgufFile) -> str | None:
    """The format of the tool that wrote the file, or None when it left no trace."""
    keys = file.values.keys()
    if f"{ARCHITECTURE}.method" in keys or f"{ARCHITECTURE}.easysteer" in keys:
        return "easysteer"
    count = file.values.get(f"{ARCHITECTURE}.layer_count")
    kinds = {INT32: "llama.cpp", UINT32: "repeng"}
    return kinds.get(count.kind) if count is not None else None


def directions(file: GgufFile, request: ImportRequest) -> dict[int, FloatArray]:
    """The rows [hidden_size] by the N of their names. Raises VectorError."""
    hidden_size, _ = request.model()
    architecture = file.text("general.architecture")
    if architecture != ARCHITECTURE:
        raise VectorError("general.architecture", ARCHITECTURE, repr(architecture)[:80])
    found = {}
    for tensor in file.tensors:
        name = _DIRECTION.fullmatch(tensor.name)
        if not name:
            raise VectorError("tensor name", "direction.<N>, N a block", repr(tensor.name))
        if len(tensor.shape) != 1:
            raise VectorError(tensor.name, f"shape [{hidden_size}] (hidden_size)", f"shape {list(tensor.shape)}")
        number = int(name[1])
        if number > MAX_BLOCK_INDEX + 1:
            raise VectorError(tensor.name, f"N at most {MAX_BLOCK_INDEX + 1}", str(number))
        found[number] = as_row(tensor.name, tensor.values, hidden_size)
    if not found:
        raise VectorError("file", "tensors direction.<N>", "no tensors")
    return found


def hints(file: GgufFile) -> dict[str, str]:
    """What the file says of its making, for the provenance. The model hint is a kind (`llama`) or nothing at all."""
    said = {"model_hint": file.text(f"{ARCHITECTURE}.model_hint"), "method": file.text(f"{ARCHITECTURE}.method")}
    return {f"source_{key}": value[:MAX_TEXT_CHARS] for key, value in said.items() if value}


def as_numbered(file: GgufFile, request: ImportRequest) -> Found:
    """`direction.N` is what block N puts out."""
    return Found(directions(file, request), "direction.N is what block N puts out", provenance=hints(file))
