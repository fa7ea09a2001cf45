"""What hotwire-vllm 0.1.2 needs to steer vLLM's CPU build; a vLLM plugin, so that every process of the engine has it.

As published it can't: it imports Triton, whose kernels have no CPU driver, and it patches `load_model` of the GPU
runner, which the CPU runner overrides. So its operator is given here in torch under the same name and schema, opaque
to the compiler like the original, and its own installation is called after the CPU runner's `load_model`. Blocks
without a steered token do nothing, which is in its favor.
"""

import sys
from typing import Any

import torch


@torch.library.custom_op("hotwire::steer", mutates_args=("hidden",))
def steer(hidden: torch.Tensor, bank: torch.Tensor, slot_map: torch.Tensor, scales: torch.Tensor) -> None:
    """Adds scales[slot] * bank[slot] to the rows of `hidden` [tokens, hidden size] whose slot isn't -1."""
    rows = (slot_map >= 0).nonzero().squeeze(1)
    if len(rows):
        slots = slot_map[rows].long()
        steered = hidden[rows].float() + scales[slots, None] * bank[slots].float()
        hidden[rows] = steered.to(hidden.dtype)


@steer.register_fake
def _(hidden: torch.Tensor, bank: torch.Tensor, slot_map: torch.Tensor, scales: torch.Tensor) -> None:
    return None


def register() -> None:
    sys.modules["hotwire._kernel"] = sys.modules[__name__]
    import hotwire
    from hotwire import _patch
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    hotwire.register()
    load = CPUModelRunner.load_model

    def load_model(self: Any, *args: Any, **kwargs: Any) -> None:
        load(self, *args, **kwargs)
        _patch._install_into_model(self)

    CPUModelRunner.load_model = load_model  # type: ignore[method-assign]
