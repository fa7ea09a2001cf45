"""`easysteer`: StatisticalControlVector.export_gguf, and bare arrays (github.com/ZJU-REAL/EasySteer).

The GGUF has repeng's tensors, from `direction.0` on, and may hold directions of attention heads or router logits,
which are no residual vectors. The bare `.pt` is one tensor or numpy array; its layer is wherever it is used.
"""

import numpy as np

from steerguard.vectors.gguf_file import GgufFile
from steerguard.vectors.importers.control_vectors import ARCHITECTURE, as_numbered
from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import single
from steerguard.vectors.json_text import parse_object
from steerguard.vectors.vector import VectorError

NATIVE = f"{ARCHITECTURE}.easysteer"
COMPONENT = "hidden_states"


def read(file: GgufFile | object, request: ImportRequest) -> Found:
    if not isinstance(file, GgufFile):
        if not isinstance(file, np.ndarray):
            raise VectorError("file", "one tensor or array", type(file).__name__)
        return single("vector", file, request)
    native = file.text(NATIVE)
    component = parse_object(NATIVE, native).get("component") if native is not None else None
    if component not in (None, COMPONENT):
        raise VectorError(f"{NATIVE}, component", f"{COMPONENT}, or none", repr(component)[:80])
    return as_numbered(file, request)
