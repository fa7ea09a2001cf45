"""What the peers' contestants have in common: one vector on three blocks, at a strength of each request's own."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.contestant import PROMPT_TOKENS, Contestant

LAYERS = (8, 14, 20)
STRONG = 10.0  # at SmolLM2 one to two times the residual stream, for vectors of independent standard normals


class PeerContestant(Contestant):
    """An `LLM` with a peer's plugin."""

    def spec(self, scale: float) -> dict[str, Any]:
        """`extra_args` that make the peer add `scale` times its vector to each of LAYERS."""
        raise NotImplementedError

    def effect(self, batch: int = 8, tokens: int = 16) -> dict[str, Any]:
        """Whether the peer steers: see `effect_of`."""
        prompts = [self._prompt(PROMPT_TOKENS) for _ in range(batch)]
        return effect_of(lambda scale: self._tokens(prompts, tokens, scale))

    def _tokens(self, prompts: list[list[int]], tokens: int, scale: float | None) -> list[list[int]]:
        parameters = [self._parameters(tokens, None if scale is None else self.spec(scale)) for _ in prompts]
        return [list(o.outputs[0].token_ids) for o in self._generate(prompts, parameters, None)]

    def _steering(self, which: int | None, positions: str) -> dict[str, Any] | None:
        return None if which is None else self.spec(scale_of(which))


def effect_of(ask: Callable[[float | None], list[list[int]]]) -> dict[str, int]:
    """How many requests of a batch get other tokens under a strong vector, and how many just by being asked again."""
    plain, again, steered = ask(None), ask(None), ask(STRONG)
    return {
        "requests": len(plain),
        "changed": sum(a != b for a, b in zip(plain, steered, strict=True)),
        "first_token_changed": sum(a[0] != b[0] for a, b in zip(plain, steered, strict=True)),
        "changed_unsteered": sum(a != b for a, b in zip(plain, again, strict=True)),
    }


def scale_of(which: int) -> float:
    """As small as the blends of the other contestants, and different for each."""
    return 0.02 + which * 1e-4


def vector_rows(count: int, hidden_size: int) -> np.ndarray:
    """One row for a block, shape [count, hidden_size], float32."""
    return np.random.default_rng(1).standard_normal((count, hidden_size)).astype(np.float32)
