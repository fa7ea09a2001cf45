"""`llama.cpp`: what llama-cvector-generator writes (llama.cpp, tools/cvector-generator).

It measures what block il puts out (`l_out-il`) and writes it as `direction.(il+1)`, without the last block's; llama.cpp
adds `direction.N` to what block N puts out. So a vector is applied one block after the one it was measured at. Both
readings have their use: `index=measured`, the default, puts it where it was measured; `index=applied` does what
llama.cpp does.
"""

from steerguard.vectors.gguf_file import GgufFile
from steerguard.vectors.importers.control_vectors import directions, hints
from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.vector import VectorError


def read(file: GgufFile, request: ImportRequest) -> Found:
    numbered = directions(file, request)
    if 0 in numbered:
        raise VectorError("tensor name", "direction.1 or later, as llama.cpp numbers them", "direction.0")
    if request.index == "applied":
        convention = "direction.N goes to block N, where llama.cpp adds it (index=applied)"
        return Found(numbered, convention, provenance=hints(file))
    return Found(
        {number - 1: row for number, row in numbered.items()},
        "direction.N is what block N-1 put out (index=measured)",
        ["llama.cpp itself adds each vector one block later than it was measured; index=applied does the same"],
        hints(file),
    )
