"""Reference norms ‖h‖ of the residual stream after each block, against which the dose of a blend is computed.

Measured on the engine itself as it starts: a handful of texts of ordinary kinds and lengths run through the
loaded model, uncompiled, with hooks on the decoder blocks. A block's norm is the mean L2 norm of its output over
tokens. Attention sinks (the first token, and the few others whose norm is far above the rest) would drown every
other token: those above SINK_FACTOR times the block's median are left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

SINK_FACTOR = 5.0
FALLBACK_TOKENS = 64

PROBE_TEXTS = (
    "What time do you open on Sundays?",
    "My parcel still hasn't arrived and nobody answers the phone. I would like my money back, please.",
    "Write a function that returns the n largest numbers of a list, and explain what it costs.",
    "The committee met on Thursday to go through the budget for the coming year. Three proposals were on the table: "
    "a new roof for the library, a second bus line to the hospital, and a reserve for repairs after the winter "
    "floods. After an hour of discussion the library was put off, because the old roof had been patched in spring "
    "and would hold for another year. The bus line found friends on all sides, yet nobody could say what it would "
    "cost to run in the evenings, so the office was asked to bring figures to the next meeting.",
    "She had kept the letters in a tin under the stairs, tied with a green ribbon, and in forty years had never "
    "once untied it. Now the house was sold. She sat on the lowest step with the tin on her knees and listened to "
    "the men carrying the piano down the hall, and thought that there is a kind of courage in not knowing.",
    '{"order": 4471, "items": [{"sku": "TN-20", "count": 2}, {"sku": "KB-7", "count": 1}], "paid": true}',
    "Q: How do bees find their way home?\nA: They remember landmarks and read the position of the sun, and on cloudy "
    "days the polarization of the light, which tells them where the sun is.\nQ: And at night?\nA:",
    "Mix the flour and the salt, rub in the butter, and add cold water a spoonful at a time until the dough holds "
    "together. Leave it to rest for half an hour. Meanwhile peel and slice the apples, and toss them with the sugar.",
)


class NormProbe:
    """Collects the norms of what a worker's blocks put out, while it is installed."""

    def __init__(self, model: nn.Module, blocks: Mapping[int, nn.Module]) -> None:
        self._norms: dict[int, list[torch.Tensor]] = {block: [] for block in blocks}
        self._handles = [module.register_forward_hook(self._hook(block)) for block, module in blocks.items()]
        # Hooks are not in the compiled graph: for this while vLLM's decorated modules run as they were written
        # (vllm/compilation/decorators.py, `do_not_compile`).
        self._compiled = [m for m in model.modules() if getattr(m, "do_not_compile", True) is False]
        for module in self._compiled:
            module.do_not_compile = True  # type: ignore[assignment]

    def finish(self) -> dict[int, float]:
        """Takes the probe out; the mean norm of each block, empty if no forward pass was seen."""
        for handle in self._handles:
            handle.remove()
        for module in self._compiled:
            module.do_not_compile = False  # type: ignore[assignment]
        return {block: _typical(torch.cat(norms)) for block, norms in self._norms.items() if norms}

    def _hook(self, block: int) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            stream = output[0] + output[1] if isinstance(output, tuple) else output
            self._norms[block].append(stream.detach().float().norm(dim=-1).flatten().cpu())

        return hook


def probe_prompts(tokenizer: Any, vocabulary_size: int) -> list[Any]:
    """The prompts of a measurement: texts, or token ids spread over the vocabulary where there is no tokenizer."""
    if tokenizer is not None:
        return list(PROBE_TEXTS)
    step = max(vocabulary_size // FALLBACK_TOKENS, 1)
    ids = list(range(1, vocabulary_size, step))[:FALLBACK_TOKENS]
    return [{"prompt_token_ids": ids[i::4]} for i in range(4)]


def probe_parameters() -> Any:
    """Sampling parameters of a probe: one token, and the whole prompt computed."""
    from vllm import SamplingParams

    return SamplingParams(max_tokens=1, temperature=0.0, skip_reading_prefix_cache=True)


def merge(measured: Iterable[Mapping[int, float]], num_layers: int) -> dict[int, float]:
    """One norm per block from the workers' (tensor-parallel ones agree, pipeline stages add up).

    RuntimeError unless every block has been seen: without norms the dose limit can't be kept.
    """
    norms = {int(block): float(norm) for part in measured for block, norm in part.items()}
    unseen = sorted(set(range(num_layers)) - set(norms))
    if unseen:
        raise RuntimeError(
            f"the residual stream's norms couldn't be measured at blocks {unseen}: expected each block to run outside "
            "full CUDA graphs while the engine starts (use cudagraph mode FULL_AND_PIECEWISE, vLLM's default)"
        )
    return norms


def _typical(norms: torch.Tensor) -> float:
    return float(norms[norms <= SINK_FACTOR * norms.median()].mean())
