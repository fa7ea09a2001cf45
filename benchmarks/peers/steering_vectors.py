"""Hugging Face transformers with steering-vectors: a forward hook on each block, the same vector for a whole batch."""

import sys
import time
from typing import Any

import numpy as np

from benchmarks.contestant import PROMPT_TOKENS, Contestant, serve
from benchmarks.peers.contestant import LAYERS, effect_of, scale_of, vector_rows


class Clock:
    """A streamer that notes when each token comes; `generate` hands it the prompt first."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


class SteeringVectors(Contestant):
    def __init__(self, model: str) -> None:
        import torch
        from steering_vectors import SteeringVector
        from transformers import AutoModelForCausalLM

        self.kind = "steering-vectors"
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
        self.model.generation_config.eos_token_id = None  # each request goes to its full length
        self.rng = np.random.default_rng(0)
        self.vocabulary = self.model.config.vocab_size
        rows = torch.from_numpy(vector_rows(len(LAYERS), self.model.config.hidden_size)).bfloat16()
        self.vector = SteeringVector(dict(zip(LAYERS, rows, strict=True)))

    def generate(self, batch: int, tokens: int, distinct: int) -> dict[str, Any]:
        """As `Contestant.generate`, but with the same vector for all, whatever `distinct` is."""
        prompts = [self._prompt(PROMPT_TOKENS) for _ in range(batch)]
        clock = Clock()
        began = time.perf_counter()
        self._tokens(prompts, tokens, scale_of(0) if distinct else None, clock)
        seconds = time.perf_counter() - began
        first, last = clock.times[1], clock.times[-1]
        return {
            "tokens_per_s": batch * tokens / seconds,
            "ttft_ms": (first - began) * 1e3,
            "inter_token_ms": (last - first) / max(tokens - 1, 1) * 1e3,
        }

    def effect(self, batch: int = 8, tokens: int = 16) -> dict[str, Any]:
        """Whether it steers: see `effect_of`."""
        prompts = [self._prompt(PROMPT_TOKENS) for _ in range(batch)]
        return effect_of(lambda scale: self._tokens(prompts, tokens, scale))

    def _tokens(
        self, prompts: list[list[int]], tokens: int, scale: float | None, clock: Clock | None = None
    ) -> list[list[int]]:
        import torch

        inputs = torch.tensor(prompts)
        arguments: dict[str, Any] = {
            "attention_mask": torch.ones_like(inputs),
            "max_new_tokens": tokens,
            "do_sample": False,
            "pad_token_id": 0,
            "streamer": clock,
        }
        if scale is None:
            output = self.model.generate(inputs, **arguments)
        else:
            with self.vector.apply(self.model, multiplier=scale):
                output = self.model.generate(inputs, **arguments)
        answers: list[list[int]] = output[:, inputs.shape[1] :].tolist()
        assert all(len(a) == tokens for a in answers)
        return answers


if __name__ == "__main__":
    serve(lambda: SteeringVectors(sys.argv[1]))
