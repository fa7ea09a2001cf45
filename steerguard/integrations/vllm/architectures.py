"""Which classes are decoder blocks, and how each hands on the residual stream.

vLLM's blocks return either the whole stream (one tensor) or split in two halves (`hidden_states`, `residual`)
that the next block's norm adds. Adding to one half is the same as adding to the sum; the residual half is taken,
because the other one is the MLP's output on which vLLM's all-reduce fusions match.

A class that isn't listed is refused when the model loads: steering the wrong tensor is worse than not starting.
Checked against vLLM 0.32.0.
"""

from typing import Literal

from torch import nn

Stream = Literal["split", "whole"]

_VLLM = "vllm.model_executor.models."
_HF = "transformers.models."

DECODER_BLOCKS: dict[str, Stream] = {
    _VLLM + "llama.LlamaDecoderLayer": "split",  # Llama, Phi-3, SmolLM, Yi, …
    _VLLM + "mistral.MistralDecoderLayer": "split",
    _VLLM + "qwen2.Qwen2DecoderLayer": "split",
    _VLLM + "qwen3.Qwen3DecoderLayer": "split",
    _VLLM + "gemma2.Gemma2DecoderLayer": "split",
    _VLLM + "gemma3.Gemma3DecoderLayer": "split",
    _VLLM + "mixtral.MixtralDecoderLayer": "split",
    _VLLM + "gpt2.GPT2Block": "whole",
    _VLLM + "opt.OPTDecoderLayer": "whole",
    # Served through vLLM's Transformers backend, with a leading batch dimension of 1.
    _HF + "olmo2.modeling_olmo2.Olmo2DecoderLayer": "whole",
}


class UnsupportedModel(RuntimeError):
    """The model has no decoder blocks that the plugin knows how to steer."""


def find_blocks(model: nn.Module, num_layers: int) -> dict[int, nn.Module]:
    """The decoder blocks that this worker owns, by 0-based index in the whole model.

    They are the entries of the one ModuleList as long as the model is deep; blocks of other pipeline stages are
    placeholders in it. Raises UnsupportedModel, naming the class.
    """
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == num_layers and _is_stack(module)
    ]
    known = [(n, m) for n, m in stacks if any(_class_name(b) in DECODER_BLOCKS for b in m)]
    if len(known) != 1:
        seen = sorted({_class_name(b) for _, m in stacks for b in m if not _is_placeholder(b)})
        raise UnsupportedModel(
            f"SteerGuard can't steer {_class_name(model)}: expected one stack of {num_layers} decoder blocks of a "
            f"known class, found {len(known)} among {', '.join(seen) or 'no stack of that depth'}. Serve it without "
            "the plugin (VLLM_PLUGINS), or add the class to steerguard/integrations/vllm/architectures.py."
        )
    blocks = {i: block for i, block in enumerate(known[0][1]) if not _is_placeholder(block)}
    strange = sorted({_class_name(b) for b in blocks.values()} - set(DECODER_BLOCKS))
    if strange:
        raise UnsupportedModel(f"SteerGuard can't steer {_class_name(model)}: unknown blocks {', '.join(strange)}")
    return blocks


def stream_of(block: nn.Module) -> Stream:
    return DECODER_BLOCKS[_class_name(block)]


def _is_stack(modules: nn.ModuleList) -> bool:
    return any(not _is_placeholder(m) for m in modules)


def _is_placeholder(module: nn.Module) -> bool:
    return type(module).__name__ == "PPMissingLayer"


def _class_name(module: nn.Module) -> str:
    """The class that defines the block: decorated or generated subclasses count as what they derive from."""
    for cls in type(module).__mro__:
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name in DECODER_BLOCKS:
            return name
    return f"{type(module).__module__}.{type(module).__qualname__}"
