"""`steering-vectors`: a SteeringVector saved with torch.save (github.com/steering-vectors/steering-vectors).

`layer_activations` maps the 0-based position among the layers of `layer_type` to an array; only `decoder_block`'s
outputs are the residual stream. A plain dict of such arrays, which people save as well, is read when it is asked for
by this name. The class is never imported: a stand-in takes its values.
"""

from collections.abc import Mapping

import numpy as np

from steerguard.vectors.importers.request import Found, ImportRequest
from steerguard.vectors.importers.rows import as_row, rounding
from steerguard.vectors.torch_file import SavedSteeringVector
from steerguard.vectors.vector import MAX_BLOCK_INDEX, VectorError

LAYER_TYPE = "decoder_block"


def read(saved: object, request: ImportRequest) -> Found:
    hidden_size, _ = request.model()
    activations = saved
    if isinstance(saved, SavedSteeringVector):
        if saved.layer_type != LAYER_TYPE:
            raise VectorError("layer_type", f"{LAYER_TYPE}, the residual stream", repr(saved.layer_type)[:80])
        activations = saved.layer_activations
    if not isinstance(activations, Mapping) or not activations:
        raise VectorError("layer_activations", "a dict of arrays by layer", type(activations).__name__)
    layers = {}
    for layer, values in activations.items():
        if type(layer) is not int or not 0 <= layer <= MAX_BLOCK_INDEX:
            raise VectorError("layer_activations", f"layers 0 to {MAX_BLOCK_INDEX}", repr(layer)[:80])
        layers[layer] = as_row(f"layer {layer}", values, hidden_size)
    arrays = [values for values in activations.values() if isinstance(values, np.ndarray)]
    return Found(layers, "layer N is what block N puts out", rounding(*arrays))
