"""`repeng`: ControlVector.export_gguf (github.com/vgel/repeng, repeng/extract.py).

`direction.N` is measured on `hidden_states[N + 1]` and added to what block N puts out. Its last block's vector, N =
num_layers - 1, is measured after the model's final norm, which is where Hugging Face reads the last hidden state.
"""

from dataclasses import replace

from steerguard.vectors.gguf_file import GgufFile
from steerguard.vectors.importers.control_vectors import as_numbered
from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import after_final_norm


def read(file: GgufFile, request: ImportRequest) -> Found:
    found = as_numbered(file, request)
    return replace(found, warnings=after_final_norm(found.layers, request))
