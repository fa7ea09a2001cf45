"""Runs a Hugging Face causal model over answers and keeps the mean residual stream of each at chosen blocks.

The residual stream is read with forward hooks on the decoder blocks, which is where it will be steered.
`output_hidden_states` would do for every block but the last, whose entry comes after the final norm
(transformers, modeling_llama.py, LlamaModel.forward). The pass stops after the last block asked for, and the
language head, a fifth of a small model's work, never runs.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from steerguard.vectors import base_model_name
from steerguard.vectors.vector import FloatArray

BATCH_TOKENS = 2_048
"""Padded tokens per forward pass. On a 135M model and two cores, 1,024 to 4,096 took the same time, 8,192 more."""


@dataclass(frozen=True)
class LanguageModel:
    """A model and its tokenizer, in float32 and in evaluation mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """What vectors made on it carry as `base_model`."""

    @property
    def blocks(self) -> nn.ModuleList:
        """The decoder blocks, in order. Raises ValueError for a model that isn't built of such."""
        count = self.num_blocks
        for module in self.model.base_model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return module
        raise ValueError(f"{type(self.model).__name__} has no list of {count} decoder blocks")

    @property
    def num_blocks(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)


@dataclass(frozen=True)
class AnswerActivations:
    """What the model's residual stream was over the tokens of each answer."""

    layers: tuple[int, ...]
    means: FloatArray
    """[answers, layers, hidden_size]: mean over the answer's tokens of each block's output."""
    norms: FloatArray
    """[answers, layers]: mean over the answer's tokens of the output's L2 norm."""
    tokens: tuple[int, ...]
    """Tokens of each answer."""


def load_language_model(model: str | os.PathLike[str], *, name: str | None = None) -> LanguageModel:
    """Loads a folder or hub id in float32. Raises OSError or ValueError, as transformers does."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    with _own_progress_only():
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return LanguageModel(model=loaded.eval(), tokenizer=tokenizer, name=name or base_model_name(model))


def render_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> str:
    """The prompt as the model sees it before it answers: its chat template, or the bare text without one."""
    if not tokenizer.chat_template:
        return f"{prompt}\n"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    assert isinstance(text, str)
    return text


def collect_activations(
    language_model: LanguageModel,
    exchanges: Sequence[tuple[str, str]],
    *,
    layers: Sequence[int],
    batch_tokens: int = BATCH_TOKENS,
    on_progress: Callable[[int], None] | None = None,
) -> AnswerActivations:
    """Mean residual stream over the response tokens of each (prompt, answer), at every block of `layers`.

    One pass per batch, whatever the number of layers; answers of similar length share a batch, so little of
    it is padding. `on_progress` gets the number of answers each batch finished. The same exchanges in the
    same order give the same batches and so the same floats. Raises ValueError for a block the model hasn't
    got.
    """
    layers = tuple(sorted(set(layers)))
    blocks = language_model.blocks
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise ValueError(f"layers: expected blocks 0 to {len(blocks) - 1}, found {layer}")
    if not layers:
        raise ValueError("layers: expected at least one block, found none")

    encoded = [_encode(language_model.tokenizer, prompt, answer) for prompt, answer in exchanges]
    means = np.zeros((len(encoded), len(layers), language_model.hidden_size), np.float32)
    norms = np.zeros((len(encoded), len(layers)), np.float32)
    device = language_model.model.device
    for batch in _batches([len(ids) for ids, _ in encoded], batch_tokens):
        length = max(len(encoded[index][0]) for index in batch)
        ids = torch.zeros((len(batch), length), dtype=torch.long)
        attended = torch.zeros((len(batch), length), dtype=torch.long)
        answered = torch.zeros((len(batch), length), dtype=torch.float32)
        for row, index in enumerate(batch):
            tokens, start = encoded[index]
            ids[row, : len(tokens)] = torch.tensor(tokens)
            attended[row, : len(tokens)] = 1
            answered[row, start : len(tokens)] = 1
        weights = (answered / answered.sum(dim=1, keepdim=True)).to(device)
        with torch.inference_mode(), _recorded_outputs(blocks, layers) as outputs:
            with suppress(_LastBlockReached):
                language_model.model.base_model(
                    input_ids=ids.to(device), attention_mask=attended.to(device), use_cache=False
                )
            for column, layer in enumerate(layers):
                hidden = outputs[layer].float()
                means[batch, column] = torch.einsum("bt,bth->bh", weights, hidden).cpu().numpy()
                norms[batch, column] = (weights * hidden.norm(dim=-1)).sum(dim=1).cpu().numpy()
        if on_progress is not None:
            on_progress(len(batch))
    return AnswerActivations(
        layers=layers,
        means=means,
        norms=norms,
        tokens=tuple(len(ids) - start for ids, start in encoded),
    )


@contextmanager
def _own_progress_only() -> Iterator[None]:
    """Keeps transformers' progress bars off a screen that already shows the caller's."""
    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


class _LastBlockReached(Exception):
    """Ends a forward pass whose remaining blocks nobody asked for."""


@contextmanager
def _recorded_outputs(blocks: nn.ModuleList, layers: Sequence[int]) -> Iterator[dict[int, torch.Tensor]]:
    """Keeps the outputs [batch, tokens, hidden_size] of `layers` (ascending); ends the pass after them."""
    outputs: dict[int, torch.Tensor] = {}

    def recorder(layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def record(_block: nn.Module, _inputs: Any, output: Any) -> None:
            outputs[layer] = output[0] if isinstance(output, tuple) else output
            if layer == layers[-1]:
                raise _LastBlockReached

        return record

    handles = [blocks[layer].register_forward_hook(recorder(layer)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> tuple[list[int], int]:
    """Token ids of prompt and answer, and where the answer starts.

    They are tokenized apart, as in generation, where the prompt's last token is fixed before the answer
    begins.
    """
    rendered = render_prompt(tokenizer, prompt)
    head = tokenizer.encode(rendered, add_special_tokens=not tokenizer.chat_template)
    tail = tokenizer.encode(answer, add_special_tokens=False)
    if not tail:
        raise ValueError(f"answer: expected at least one token, found none in {answer!r}")
    return head + tail, len(head)


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indexes grouped by length, so that each group, padded to its longest, has at most `batch_tokens`."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batch and (len(batch) + 1) * lengths[index] > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
