"""hotwire-vllm, with what benchmarks/peers/hotwire_cpu.py changes about it."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contestant import serve
from benchmarks.peers.contestant import LAYERS, PeerContestant, vector_rows

# It takes a slot for each (vector, block, scale) and never gives one back; its default is 16.
SLOTS = 1024


class Hotwire(PeerContestant):
    def __init__(self, model: str) -> None:
        import torch
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model)
        rows = torch.from_numpy(vector_rows(config.num_hidden_layers, config.hidden_size))
        with tempfile.TemporaryDirectory() as folder:
            torch.save(rows, Path(folder) / "bench.pt")
            os.environ |= {"HOTWIRE_VECTORS": folder, "HOTWIRE_SLOTS": str(SLOTS)}  # read as the workers start
            super().__init__(model, "hotwire", None)

    def spec(self, scale: float) -> dict[str, Any]:
        return {"hotwire": [{"id": "bench", "layer": layer, "scale": scale} for layer in LAYERS]}


if __name__ == "__main__":
    serve(lambda: Hotwire(sys.argv[1]))
