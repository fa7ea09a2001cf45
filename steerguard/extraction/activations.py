"""The mean residual stream of a Hugging Face causal model over answers, at chosen blocks, batch by batch."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from steerguard.extraction.forward import Reader, Text, Tokens
from steerguard.extraction.progress import ShouldStop, stop_if
from steerguard.extraction.store import ActivationStore
from steerguard.vectors import base_model_name
from steerguard.vectors.vector import FloatArray

BATCH_TOKENS = 2_048
"""Padded tokens per forward pass. On a 135M model and two cores, 1,024 to 4,096 took the same time, 8,192 more."""
SAMPLED_VALUES = 1_024
"""Values of each parameter that enter a model's digest."""


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

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over the parameters' names, shapes and values spread evenly through each.

        Not over all values: that would take longer than reading some hundred answers.
        """
        sha = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            values = parameter.detach().flatten()
            values = values[:: max(len(values) // SAMPLED_VALUES, 1)].float().cpu()
            sha.update(f"{name}{list(parameter.shape)}".encode() + values.numpy().tobytes())
        return sha.hexdigest()


@dataclass(frozen=True)
class AnswerActivations:
    """What the model's residual stream was over the tokens of each answer."""

    layers: tuple[int, ...]
    means: FloatArray
    """[layers, answers, hidden_size]: mean over the tokens read of each block's output. May be a file's."""
    norms: FloatArray
    """[layers, answers]: mean over them of the output's L2 norm."""
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
    tokens: Tokens = "response",
    batch_tokens: int = BATCH_TOKENS,
    work: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> AnswerActivations:
    """Mean residual stream over the tokens of each (prompt, answer), at every block of `layers`.

    One pass per batch, whatever the number of layers; answers of similar length and with the same prompt share a
    batch, so little of it is padding. The same exchanges in the same order give the same batches and so the same
    floats. With a folder `work` each finished batch is kept there, and a later call with the same model and
    exchanges does only the rest; without one everything stays in memory. `on_progress` gets the number of answers
    each batch finished, kept ones included. Raises ValueError for a block the model hasn't got, Stopped when
    `should_stop` is true before a batch, RuntimeError as the store does.
    """
    layers = tuple(sorted(set(layers)))
    blocks = language_model.blocks
    for layer in layers:
        if not 0 <= layer < len(blocks):
            raise ValueError(f"layers: expected blocks 0 to {len(blocks) - 1}, found {layer}")
    if not layers:
        raise ValueError("layers: expected at least one block, found none")

    texts = [_encode(language_model.tokenizer, prompt, answer) for prompt, answer in exchanges]
    limit = getattr(language_model.model.config.get_text_config(), "max_position_embeddings", None)
    for index, text in enumerate(texts):
        if limit is not None and len(text) > limit:
            raise ValueError(f"answer {index}: expected at most {limit} tokens with its prompt, found {len(text)}")
    reader = Reader(language_model.model, blocks, layers=layers, tokens=tokens, texts=texts)
    key = _key(language_model, texts, layers, tokens, batch_tokens, reader.reuses_prompts)
    store = ActivationStore(
        key, layers=len(layers), answers=len(texts), hidden_size=language_model.hidden_size, folder=work
    )
    try:
        for number, batch in enumerate(_batches(texts, batch_tokens)):
            if number not in store.done:
                stop_if(should_stop)
                reading = reader.read([texts[index] for index in batch])
                store.means[:, batch] = reading.means
                store.norms[:, batch] = reading.norms
                store.finish(number)
            if on_progress is not None:
                on_progress(len(batch))
    finally:
        store.close()
    return AnswerActivations(
        layers=layers, means=store.means, norms=store.norms, tokens=tuple(len(text.answer) for text in texts)
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


def _encode(tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> Text:
    """Token ids of prompt and answer.

    They are tokenized apart, as in generation, where the prompt's last token is fixed before the answer
    begins.
    """
    rendered = render_prompt(tokenizer, prompt)
    head = tokenizer.encode(rendered, add_special_tokens=not tokenizer.chat_template)
    tail = tokenizer.encode(answer, add_special_tokens=False)
    if not tail:
        raise ValueError(f"answer: expected at least one token, found none in {answer!r}")
    return Text(tuple(head), tuple(tail))


def _key(
    language_model: LanguageModel,
    texts: Sequence[Text],
    layers: tuple[int, ...],
    tokens: Tokens,
    batch_tokens: int,
    reuses_prompts: bool,
) -> str:
    """Digest of everything that the numbers depend on; the tokens have tokenizer and chat template in them."""
    sha = hashlib.sha256(language_model.digest.encode())
    sha.update(json.dumps([layers, tokens, batch_tokens, reuses_prompts, torch.__version__]).encode())
    for text in texts:
        sha.update(json.dumps([text.head, text.answer]).encode())
    return sha.hexdigest()


def _batches(texts: Sequence[Text], batch_tokens: int) -> Iterator[list[int]]:
    """Indexes of texts, those of one prompt together and else grouped by length.

    Each group, padded to its longest, has at most `batch_tokens`.
    """
    longest: dict[tuple[int, ...], int] = {}
    for text in texts:
        longest[text.head] = max(longest.get(text.head, 0), len(text))
    batch: list[int] = []
    length = 0
    for index in sorted(range(len(texts)), key=lambda index: (longest[texts[index].head], texts[index].head, index)):
        length = max(length, len(texts[index]))
        if batch and (len(batch) + 1) * length > batch_tokens:
            yield batch
            batch, length = [], len(texts[index])
        batch.append(index)
    if batch:
        yield batch
