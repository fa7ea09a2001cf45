"""The reference: Hugging Face transformers in float32, with a forward hook on the block's output."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

Row = Mapping[int, np.ndarray]

LOGPROB_TOLERANCE = 2e-3  # of vLLM in float32


class Reference:
    """One model, asked greedily, steered by rows: {block: [hidden_size]} for each phase."""

    def __init__(self, path: Path) -> None:
        torch.set_num_threads(1)  # an engine runs beside it: two threads on shared cores wait for each other
        self.tokenizer = AutoTokenizer.from_pretrained(path) if (path / "tokenizer.json").exists() else None
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()

    def tokens(self, text: str) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer(text)["input_ids"]

    def greedy(self, prompt: Sequence[int], count: int, *, prompt_row: Row, response_row: Row) -> list[int]:
        """`count` greedy tokens; the response row is added from the last prompt token on."""
        return self.greedy_with_logprobs(prompt, count, prompt_row=prompt_row, response_row=response_row)[0]

    @torch.inference_mode()
    def greedy_with_logprobs(
        self, prompt: Sequence[int], count: int, *, prompt_row: Row, response_row: Row
    ) -> tuple[list[int], list[float]]:
        answered: list[int] = []
        logprobs: list[float] = []
        cache = DynamicCache(config=self.model.config)
        with ExitStack() as hooks:
            for index in {*prompt_row, *response_row}:
                hook = _add(prompt_row.get(index), response_row.get(index), len(prompt) - 1)
                handle = blocks_of(self.model)[index].register_forward_hook(hook)
                hooks.callback(handle.remove)
            next_ids = list(prompt)
            for _ in range(count):
                output = self.model(torch.tensor([next_ids]), past_key_values=cache, use_cache=True)
                scores = torch.log_softmax(output.logits[0, -1].float(), -1)
                next_ids = [int(scores.argmax())]
                logprobs.append(float(scores.max()))
                answered += next_ids
        return answered, logprobs

    @torch.inference_mode()
    def norms(self, prompts: Sequence[Sequence[int]], sink_factor: float) -> list[float]:
        """Mean norm of each block's output over the prompts' tokens, but for those far above the median."""
        seen: list[list[torch.Tensor]] = [[] for _ in blocks_of(self.model)]
        with ExitStack() as hooks:
            for into, block in zip(seen, blocks_of(self.model), strict=True):
                hook = block.register_forward_hook(
                    lambda _m, _i, out, into=into: into.append(
                        (out[0] if isinstance(out, tuple) else out)[0].norm(dim=-1)
                    )
                )
                hooks.callback(hook.remove)
            for prompt in prompts:
                self.model(torch.tensor([list(prompt)]))
        norms = [torch.cat(block) for block in seen]
        return [float(n[n <= sink_factor * n.median()].mean()) for n in norms]


def blocks_of(model: Any) -> Any:
    """The list of decoder blocks of a Hugging Face model."""
    inner = getattr(model, "model", None) or model.transformer
    inner = getattr(inner, "decoder", inner)
    return inner.layers if hasattr(inner, "layers") else inner.h


def _add(prompt: np.ndarray | None, response: np.ndarray | None, boundary: int) -> Callable[..., Any]:
    position = 0

    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        nonlocal position
        hidden = (output[0] if isinstance(output, tuple) else output).clone()
        split = max(boundary - position, 0)
        position += hidden.shape[1]
        if prompt is not None:
            hidden[:, :split] += torch.from_numpy(prompt.copy())
        if response is not None:
            hidden[:, split:] += torch.from_numpy(response.copy())
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return hook
