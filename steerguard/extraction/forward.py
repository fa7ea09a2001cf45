"""The forward passes of an extraction: what a model's blocks put out over each answer, reduced as it comes.

The residual stream is read with forward hooks on the decoder blocks, which is where it will be steered.
`output_hidden_states` would do for every block but the last, whose entry comes after the final norm
(transformers, modeling_llama.py, LlamaModel.forward). A pass stops after the last block asked for, and the
language head, a fifth of a small model's work, never runs.

Half of the tokens of a set of pairs are the same again: the chat template's opening, in front of every prompt, and
each prompt, in front of both answers. They are computed once and their keys and values reused, as a prefix cache
does, where a trial on the job's own texts shows that the model's numbers stay the same.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from steerguard.vectors.vector import FloatArray

Tokens = Literal["response", "last", "all"]
"""Which tokens an answer is read at: all of its own, its last one, or the prompt's too (but the very first, on
which models park attention: its norm is many times the others')."""

SAME = 1e-3
"""Relative difference, of a block's mean output, up to which a pass with reused prompts is taken to be right."""


@dataclass(frozen=True)
class Text:
    """Token ids of a rendered prompt and of the answer that follows it; neither is empty."""

    head: tuple[int, ...]
    answer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.head) + len(self.answer)


@dataclass(frozen=True)
class Reading:
    """What some texts gave."""

    means: FloatArray
    """[layers, texts, hidden_size]: mean output of each block over the tokens read."""
    norms: FloatArray
    """[layers, texts]: mean L2 norm over them."""


class Reader:
    """Reads batches of texts at some blocks of a model.

    `texts` is everything that will be read: what all of them begin with is computed once.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blocks: nn.ModuleList,
        *,
        layers: Sequence[int],
        tokens: Tokens,
        texts: Sequence[Text],
    ) -> None:
        self._model = model
        self._blocks = blocks
        self._layers = tuple(layers)
        self._tokens = tokens
        self._prefix = _common_prefix([text.head for text in texts])
        self._prefix_cache: DynamicCache | None = None
        self.reuses_prompts = self._can_reuse(texts)

    def read(self, texts: Sequence[Text]) -> Reading:
        return self._read_reusing(texts) if self.reuses_prompts else self._read_whole(texts)

    def _can_reuse(self, texts: Sequence[Text]) -> bool:
        """Whether this model gives the same numbers with reused prompts.

        Tried rather than looked up by architecture: state-space layers, windows and custom caches differ.
        """
        window = getattr(self._model.config.get_text_config(), "sliding_window", None)
        if self._tokens == "all" or (window is not None and max(map(len, texts)) >= window):
            return False
        sample = sorted(texts, key=len)[:2]
        whole = self._read_whole(sample)
        try:
            reused = self._read_reusing(sample)
        except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, NotImplementedError):
            return False
        error = np.linalg.norm(reused.means - whole.means, axis=-1)
        return bool(np.all(error <= SAME * np.linalg.norm(whole.means, axis=-1)))

    def _read_whole(self, texts: Sequence[Text]) -> Reading:
        ids, attended = _padded([text.head + text.answer for text in texts])
        read = torch.zeros(ids.shape)
        for row, text in enumerate(texts):
            first = {"response": len(text.head), "last": len(text) - 1, "all": min(1, len(text) - 1)}[self._tokens]
            read[row, first : len(text)] = 1
        return self._run(read, input_ids=ids, attention_mask=attended, use_cache=False)

    def _read_reusing(self, texts: Sequence[Text]) -> Reading:
        heads = list(dict.fromkeys(text.head for text in texts))
        cache, seen = self._read_heads(heads)
        row_of = {head: row for row, head in enumerate(heads)}
        rows = torch.tensor([row_of[text.head] for text in texts])
        cache.batch_select_indices(rows.to(self._model.device))
        ids, attended = _padded([text.answer for text in texts])
        read = attended.float()
        if self._tokens == "last":
            read = torch.zeros(ids.shape)
            read[torch.arange(len(texts)), attended.sum(dim=1) - 1] = 1
        starts = torch.tensor([len(text.head) for text in texts])
        return self._run(
            read,
            input_ids=ids,
            attention_mask=torch.cat([seen[rows], attended], dim=1),
            position_ids=starts[:, None] + torch.arange(ids.shape[1]),
            past_key_values=cache,
            use_cache=True,
        )

    def _read_heads(self, heads: Sequence[tuple[int, ...]]) -> tuple[DynamicCache, torch.Tensor]:
        """Keys and values of the prompts, [heads, tokens], and which of these tokens are real."""
        length = len(self._prefix)
        if length and self._prefix_cache is None:
            self._prefix_cache = DynamicCache()
            self._forward(input_ids=torch.tensor([self._prefix]), past_key_values=self._prefix_cache, use_cache=True)
        cache = copy.deepcopy(self._prefix_cache) if self._prefix_cache is not None else DynamicCache()
        cache.batch_repeat_interleave(len(heads))
        ids, attended = _padded([head[length:] for head in heads])
        seen = torch.cat([torch.ones((len(heads), length), dtype=torch.long), attended], dim=1)
        positions = (length + torch.arange(ids.shape[1])).expand(ids.shape)
        self._forward(input_ids=ids, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True)
        return cache, seen

    def _run(self, read: torch.Tensor, **inputs: Any) -> Reading:
        """One pass, reduced over the tokens where `read` [texts, tokens] is 1."""
        weights = (read / read.sum(dim=1, keepdim=True)).to(self._model.device)
        reduced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def reduce(layer: int, output: torch.Tensor) -> None:
            hidden = output.float()
            mean = torch.einsum("bt,bth->bh", weights, hidden)
            reduced[layer] = (mean.cpu(), (weights * hidden.norm(dim=-1)).sum(dim=1).cpu())

        self._forward(reduce, **inputs)
        means, norms = zip(*(reduced[layer] for layer in self._layers), strict=True)
        return Reading(means=torch.stack(means).numpy(), norms=torch.stack(norms).numpy())

    def _forward(self, on_output: Callable[[int, torch.Tensor], None] | None = None, **inputs: Any) -> None:
        device = self._model.device
        moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
        with torch.inference_mode(), _hooked(self._blocks, self._layers, on_output), suppress(_LastBlockReached):
            self._model.base_model(**moved)


class _LastBlockReached(Exception):
    """Ends a forward pass whose remaining blocks nobody asked for."""


@contextmanager
def _hooked(
    blocks: nn.ModuleList, layers: Sequence[int], on_output: Callable[[int, torch.Tensor], None] | None
) -> Iterator[None]:
    """Hands over the outputs [batch, tokens, hidden_size] of `layers` (ascending); ends the pass after them."""

    def hook_of(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_block: nn.Module, _inputs: Any, output: Any) -> None:
            if on_output is not None:
                on_output(layer, output[0] if isinstance(output, tuple) else output)
            if layer == layers[-1]:
                raise _LastBlockReached

        return hook

    handles = [blocks[layer].register_forward_hook(hook_of(layer)) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _common_prefix(heads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """What all heads begin with, short of any head's last token."""
    first, last = min(heads), max(heads)  # what these two share lies in every head between them
    shared = itertools.takewhile(lambda tokens: tokens[0] == tokens[1], zip(first, last, strict=False))
    return first[: min(sum(1 for _ in shared), min(map(len, heads)) - 1)]


def _padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows, longest], padded on the right, and 1 where they are real."""
    length = max(map(len, rows))
    ids = torch.zeros((len(rows), length), dtype=torch.long)
    attended = torch.zeros((len(rows), length), dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        attended[row, : len(tokens)] = 1
    return ids, attended
