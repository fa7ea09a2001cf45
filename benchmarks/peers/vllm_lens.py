"""vllm-lens: forward hooks of Python on every block, vectors sent to the workers before each batch."""

import sys
from typing import Any

from benchmarks.contestant import serve
from benchmarks.peers.contestant import LAYERS, PeerContestant, vector_rows


class VllmLens(PeerContestant):
    def __init__(self, model: str) -> None:
        import torch

        super().__init__(model, "vllm-lens", None)
        self.rows = torch.from_numpy(vector_rows(len(LAYERS), self.hidden_size))

    def spec(self, scale: float) -> dict[str, Any]:
        from vllm_lens import SteeringVector

        vector = SteeringVector(activations=self.rows, layer_indices=list(LAYERS), scale=scale)
        return {"apply_steering_vectors": [vector]}


if __name__ == "__main__":
    serve(lambda: VllmLens(sys.argv[1]))
