"""Where a GPU's memory goes, and how many requests of a length what is left holds."""

from dataclasses import dataclass

from jobs.planner.hardware import Hardware
from jobs.planner.shape import ModelShape

KV_BLOCK_TOKENS = 16  # vLLM's block on GPUs


@dataclass(frozen=True)
class Memory:
    """Of one GPU, in bytes. `left` is what is there for KV cache; below 0 the weights or extras don't fit."""

    usable: int
    weights: int
    extras: int
    left: int
    kv_tokens: int
    """Tokens whose keys and values fit."""
    request_bytes: float
    """What a request of the full context length takes."""
    batch: int
    """Such requests that fit at once."""

    @property
    def fits(self) -> bool:
        return self.batch >= 1


def divide_memory(
    shape: ModelShape, hardware: Hardware, *, context_tokens: int, extras_bytes: float, lost_per_request: float = 0.0
) -> Memory:
    """What is left for KV cache on each GPU beside weights and `extras_bytes` (adapters, slots or rows).

    `lost_per_request` is what paging loses for each request, in bytes.
    """
    weights = -(-shape.weight_bytes // hardware.gpus)
    left = int(hardware.usable_bytes - weights - extras_bytes)
    per_token = shape.kv_bytes_per_token(hardware.gpus)
    blocks = -(-context_tokens // KV_BLOCK_TOKENS)
    per_request = blocks * KV_BLOCK_TOKENS * per_token + lost_per_request
    return Memory(
        usable=hardware.usable_bytes,
        weights=weights,
        extras=int(extras_bytes),
        left=left,
        kv_tokens=max(0, left) // per_token,
        request_bytes=per_request,
        batch=int(max(0, left) // per_request),
    )
