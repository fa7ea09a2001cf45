"""Random rank-16 LoRA adapters (q, k, v, o) of the size that real ones have, for engines under comparison."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig

RANK = 16


def write_adapters(model: Path, folder: Path, count: int) -> None:
    """Writes `count` adapters of a Llama-like model into sub-folders of `folder`, unless they are there."""
    config = AutoConfig.from_pretrained(model)
    head = config.head_dim or config.hidden_size // config.num_attention_heads
    wide, narrow = config.num_attention_heads * head, config.num_key_value_heads * head
    shapes = {
        "q_proj": (config.hidden_size, wide),
        "k_proj": (config.hidden_size, narrow),
        "v_proj": (config.hidden_size, narrow),
        "o_proj": (wide, config.hidden_size),
    }
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": list(shapes),
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    for index in range(count):
        target = folder / f"adapter-{index:03}"
        if (target / "adapter_config.json").exists():
            continue
        target.mkdir(parents=True, exist_ok=True)
        generator = torch.Generator().manual_seed(index)
        tensors = {}
        for layer in range(config.num_hidden_layers):
            for name, (inputs, outputs) in shapes.items():
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
                tensors[f"{key}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) * 0.02
                tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) * 0.002
        save_file(tensors, target / "adapter_model.safetensors")
        (target / "adapter_config.json").write_text(json.dumps(settings))
