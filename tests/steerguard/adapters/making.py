"""Adapters for tests: made by the real peft on tiny random models, and broken by hand in one place each."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from tests.steerguard.vllm.tiny_models import LAYERS, VOCABULARY, save_tiny_model

RANK = 4
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def save_base(folder: Path, architecture: str = "llama", *, tied: bool = False, dtype: str = "float32") -> Path:
    """A tiny model of LAYERS blocks, with grouped-query attention where the architecture has it."""
    if not tied and dtype == "float32":
        save_tiny_model(architecture, folder)
        return folder
    config = hf.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=tied,
    )  # fmt: skip
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
    return folder


def save_adapter(base: Path, folder: Path, *, seed: int = 1, **settings: Any) -> Path:
    """What peft saves after training that left a random B behind; `settings` are LoraConfig's."""
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_pretrained(base)
    settings = {"task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8, "target_modules": ATTENTION, **settings}
    peft_model = get_peft_model(model, LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_B" in name or "lora_embedding_A" in name:
                parameter.normal_(std=0.05)
    peft_model.save_pretrained(str(folder))
    return folder


def edit_config(folder: Path, **settings: Any) -> None:
    """Changes settings of adapter_config.json; `...` takes one out."""
    config = json.loads((folder / CONFIG).read_text())
    config.update(settings)
    kept = {name: value for name, value in config.items() if value is not ...}
    (folder / CONFIG).write_text(json.dumps(kept))


Tensors = dict[str, torch.Tensor]


def edit_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    """Rewrites the weights after `change`, which changes the tensors in place or returns other ones by name."""
    tensors = load_file(folder / WEIGHTS)
    changed = change(tensors)
    tensors = changed if isinstance(changed, dict) else tensors
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def name_of(block: int, module: str, half: str) -> str:
    return f"base_model.model.model.layers.{block}.{module}.lora_{half}.weight"


def raw_safetensors(header: object, data: bytes = b"") -> bytes:
    """A file with whatever header; text goes in as it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
