"""A random Llama small enough to make and run in a test, with a small tokenizer and a chat template."""

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from personas.demo.recipes import FOLDER
from steerguard.extraction.pairs import read_pairs

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_tiny_model(folder: Path, *, num_blocks: int = 4, hidden_size: int = 32, seed: int = 0) -> Path:
    """Write the model to `folder`, as save_pretrained does, and return the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Merges make demo answers a quarter as long as their bytes, and tests that run them so much quicker.
    trainer = trainers.BpeTrainer(vocab_size=1_000, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(_demo_answers(), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_blocks,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2_048,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _demo_answers() -> Iterator[str]:
    for path in sorted((FOLDER / "pairs").glob("*.jsonl")):
        for pair in read_pairs(path):
            yield from (pair.positive, pair.negative)
