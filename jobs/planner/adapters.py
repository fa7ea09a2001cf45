"""What LoRA adapters take: on disk and on the bus, in vLLM's static slots, and in pages as S-LoRA has them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.planner.errors import require
from jobs.planner.shape import LINEAR_MODULES, ModelShape

# Of vLLM 0.32, vllm/config/lora.py (MaxLoRARanks): a slot has one of these.
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Layers whose input is shared out over GPUs; of all others it's the output (vllm/lora/layers; not fully sharded).
ROW_PARALLEL = ("o_proj", "down_proj")
PAGE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class AdapterShape:
    """Rank, and the linear layers of each block that have an A [rank, inputs] and a B [outputs, rank]."""

    rank: int
    modules: tuple[str, ...]

    def __post_init__(self) -> None:
        highest = VLLM_RANKS[-1]
        require(1 <= self.rank <= highest, "rank", f"a whole number from 1 to {highest}", self.rank)
        unknown = [module for module in self.modules if module not in LINEAR_MODULES]
        expected = "some of " + ", ".join(LINEAR_MODULES)
        require(bool(self.modules) and not unknown, "modules", expected, ", ".join(unknown) or "none")
        require(len(set(self.modules)) == len(self.modules), "modules", "each once", ", ".join(self.modules))


def adapter_parameters(shape: ModelShape, adapter: AdapterShape) -> int:
    """Elements of one adapter: layers · Σ rank · (inputs + outputs). Source: LoRA, arXiv 2106.09685, section 4.1."""
    return shape.layers * sum(adapter.rank * sum(shape.linear_sizes(module)) for module in adapter.modules)


def adapter_bytes(shape: ModelShape, adapter: AdapterShape, *, itemsize: int | None = None, gpus: int = 1) -> int:
    """Bytes of one adapter on one of `gpus`, in the model's dtype unless `itemsize` says otherwise."""
    return _bytes(shape, adapter.rank, adapter.modules, itemsize or shape.itemsize, gpus)


def slot_rank(rank: int) -> int:
    """The rank that vLLM's slots have for an adapter of this one (`--max-lora-rank`)."""
    return min(allowed for allowed in VLLM_RANKS if allowed >= rank)


def slot_bytes(shape: ModelShape, adapter: AdapterShape, *, restricted: bool = False, gpus: int = 1) -> int:
    """Bytes that one slot of vLLM holds on one of `gpus`, whatever is in it.

    vLLM gives each slot an A and a B of `max_lora_rank` for every linear layer (vllm/lora/utils.py, "all linear layers
    support LoRA"), and the output head (vllm/lora/layers/logits_processor.py), unless the engine is `restricted` to the
    adapters' modules with `--lora-target-modules`. The input embedding's is left out.
    """
    rank = slot_rank(adapter.rank)
    if restricted:
        return _bytes(shape, rank, adapter.modules, shape.itemsize, gpus)
    head = rank * (shape.hidden + shape.vocab) * shape.itemsize
    return _bytes(shape, rank, LINEAR_MODULES, shape.itemsize, gpus) + head


def pages(size_bytes: float, page_bytes: int = PAGE_BYTES) -> int:
    """Whole pages that something of that size takes."""
    return math.ceil(size_bytes / page_bytes)


def page_waste_bytes(size_bytes: int, count: float, sequences: float, page_bytes: int = PAGE_BYTES) -> float:
    """Bytes lost in unified pages: what each of `count` adapters leaves of its last page, and half a page a sequence.

    Keys and values grow to a random place of their last page, so half of it is empty on average.
    """
    return count * (pages(size_bytes, page_bytes) * page_bytes - size_bytes) + sequences * page_bytes / 2


def _bytes(shape: ModelShape, rank: int, modules: Sequence[str], itemsize: int, gpus: int) -> int:
    elements = 0
    for module in modules:
        inputs, outputs = shape.linear_sizes(module)
        if module in ROW_PARALLEL:
            inputs = -(-inputs // gpus)
        else:
            outputs = -(-outputs // gpus)
        elements += rank * (inputs + outputs)
    return shape.layers * elements * itemsize
