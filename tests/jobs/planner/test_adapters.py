"""Bytes of adapters: whole, in vLLM's slots, in pages."""

import math

import pytest
import torch

from jobs.planner.adapters import (
    PAGE_BYTES,
    AdapterShape,
    adapter_bytes,
    page_waste_bytes,
    pages,
    slot_bytes,
    slot_rank,
)
from jobs.planner.errors import PlanError
from jobs.planner.shape import ATTENTION_MODULES, LINEAR_MODULES, PRESETS, ModelShape

LLAMA, QWEN = PRESETS["llama-3.1-8b"], PRESETS["qwen2.5-7b"]


def tensors_of(shape: ModelShape, adapter: AdapterShape) -> list[torch.Tensor]:
    """The A and B of each adapted layer, as PEFT has them."""
    return [
        torch.empty(size, dtype=torch.bfloat16, device="meta")
        for module in adapter.modules
        for inputs, outputs in [shape.linear_sizes(module)]
        for size in [(adapter.rank, inputs), (outputs, adapter.rank)]
    ] * shape.layers


@pytest.mark.parametrize("shape", [LLAMA, QWEN])
@pytest.mark.parametrize("modules", [ATTENTION_MODULES, LINEAR_MODULES, ("q_proj", "v_proj")])
def test_an_adapter_has_the_bytes_of_its_tensors(shape: ModelShape, modules: tuple[str, ...]) -> None:
    adapter = AdapterShape(16, modules)
    assert adapter_bytes(shape, adapter) == sum(t.numel() * t.element_size() for t in tensors_of(shape, adapter))


def test_a_slot_holds_every_linear_layer_and_the_head_unless_restricted() -> None:
    adapter = AdapterShape(16, ATTENTION_MODULES)
    head = 16 * (4096 + 128256) * 2
    assert slot_bytes(LLAMA, adapter) == adapter_bytes(LLAMA, AdapterShape(16, LINEAR_MODULES)) + head
    assert slot_bytes(LLAMA, adapter, restricted=True) == adapter_bytes(LLAMA, adapter)


def test_a_slot_has_the_next_rank_that_vllm_knows() -> None:
    assert [slot_rank(rank) for rank in (1, 2, 8, 9, 16, 28, 300)] == [1, 8, 8, 16, 16, 32, 320]
    slot = slot_bytes(LLAMA, AdapterShape(28, ATTENTION_MODULES), restricted=True)
    assert slot == adapter_bytes(LLAMA, AdapterShape(32, ATTENTION_MODULES))


def test_tensor_parallel_shares_out_one_side_of_each_layer() -> None:
    # o_proj on two GPUs: A [16, 4096 / 2], B [4096, 16]
    assert adapter_bytes(LLAMA, AdapterShape(16, ("o_proj",)), gpus=2) == 32 * 16 * (2048 + 4096) * 2
    # k_proj: A [16, 4096], B [1024 / 2, 16]
    assert adapter_bytes(LLAMA, AdapterShape(16, ("k_proj",)), gpus=2) == 32 * 16 * (4096 + 512) * 2


def test_pages_lose_what_the_last_one_has_left() -> None:
    size = adapter_bytes(LLAMA, AdapterShape(16, ATTENTION_MODULES))
    assert pages(size) == math.ceil(size / PAGE_BYTES) == 2
    assert page_waste_bytes(size, 10, 0) == 10 * (2 * PAGE_BYTES - size)
    assert page_waste_bytes(PAGE_BYTES, 10, 0) == 0
    assert page_waste_bytes(PAGE_BYTES, 0, 4) == 2 * PAGE_BYTES


@pytest.mark.parametrize(
    ("rank", "modules", "field"),
    [(0, ("q_proj",), "rank"), (513, ("q_proj",), "rank"), (8, (), "modules"), (8, ("lm_head",), "modules"),
     (8, ("q_proj", "q_proj"), "modules")],
)  # fmt: skip
def test_refuses_adapters_that_there_are_not(rank: int, modules: tuple[str, ...], field: str) -> None:
    with pytest.raises(PlanError) as error:
        AdapterShape(rank, modules)
    assert error.value.field == field
