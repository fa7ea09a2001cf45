"""What the real peft writes: served settings are accepted, others refused by the field that says why."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from steerguard.adapters.base_model import read_base_model
from tests.steerguard.adapters.conftest import Check
from tests.steerguard.adapters.making import ATTENTION, WEIGHTS, save_adapter, save_base
from tests.steerguard.vllm.tiny_models import ARCHITECTURES, LAYERS

GOOD: dict[str, dict[str, Any]] = {
    "attention": {},
    "mlp": {"target_modules": ["gate_proj", "up_proj", "down_proj"]},
    "all linear layers": {"target_modules": "all-linear"},
    "an expression": {"target_modules": r".*\.self_attn\.(q|v)_proj"},
    "an expression that can't be compared": {"target_modules": r"(?!lm_head).*(q_proj|v_proj)"},
    "whole names": {"target_modules": ["model.layers.1.self_attn.q_proj", "model.layers.3.mlp.up_proj"]},
    "some layers": {"layers_to_transform": [0, 2]},
    "one layer": {"layers_to_transform": 1, "layers_pattern": "layers"},
    "excluded modules": {"target_modules": "all-linear", "exclude_modules": ["down_proj", "layers.0.self_attn.q_proj"]},
    "excluded by an expression": {"exclude_modules": r"model\.layers\.[12]\..*"},
    "ranks of their own": {"rank_pattern": {"q_proj": 8, "layers.1.self_attn.v_proj": 2}},
    "a rank by an expression": {"rank_pattern": {r"^model\.layers\.[01]\..*": 16}},
    "alphas of their own": {"alpha_pattern": {"q_proj": 32, r".*\.o_proj": 4}},
    "rsLoRA": {"use_rslora": True, "rank_pattern": {"k_proj": 16}},
    "a dropout": {"lora_dropout": 0.1},
    "a gaussian start": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "the embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "the output": {"target_modules": ["lm_head", "v_proj"]},
    "both ends": {"target_modules": ["embed_tokens", "lm_head"]},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "use_dora"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    "biases": ({"bias": "all"}, "bias"),
    "biases of LoRA": ({"lora_bias": True}, "lora_bias"),
    "trained tokens": ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
    "PiSSA": ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    "OLoRA": ({"init_lora_weights": "olora"}, "init_lora_weights"),
    "too large a rank": ({"r": 32}, "r"),
    "too large a rank of one": ({"rank_pattern": {"q_proj": 17}}, "rank_pattern q_proj"),
    "activated LoRA": ({"alora_invocation_tokens": [5, 9]}, "alora_invocation_tokens"),
}


@pytest.mark.parametrize("settings", GOOD.values(), ids=GOOD)
def test_what_can_be_served_is_accepted(base: Path, tmp_path: Path, check: Check, settings: dict[str, Any]) -> None:
    assert check(save_adapter(base, tmp_path / "adapter", **settings)) == {}


@pytest.mark.parametrize(("settings", "field"), REFUSED.values(), ids=REFUSED)
def test_what_vllm_does_not_serve_is_refused(
    base: Path, tmp_path: Path, check: Check, settings: dict[str, Any], field: str
) -> None:
    assert field in check(save_adapter(base, tmp_path / "adapter", **settings))


def test_another_method_of_peft_is_refused(base: Path, tmp_path: Path, check: Check) -> None:
    import transformers as hf
    from peft import IA3Config, get_peft_model

    model = hf.AutoModelForCausalLM.from_pretrained(base)
    config = IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[])
    get_peft_model(model, config).save_pretrained(str(tmp_path / "adapter"))
    assert check(tmp_path / "adapter")["peft_type"] == ("LORA", "IA3")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_accepted(adapter: Path, check: Check, dtype: str) -> None:
    tensors = load_file(adapter / WEIGHTS)
    save_file({name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}, adapter / WEIGHTS)
    assert check(adapter) == {}


SERVED = sorted(set(ARCHITECTURES) - {"gpt2"})


@pytest.mark.parametrize("architecture", SERVED)
def test_each_architecture_is_known_by_its_weights_and_by_its_config(
    architecture: str, tmp_path: Path, check: Check
) -> None:
    base = save_base(tmp_path / "base", architecture)
    # Of Mixtral `all-linear` means the experts too, which aren't served.
    targets = ATTENTION if architecture == "mixtral" else "all-linear"
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=targets)
    assert check(adapter, model=base) == {}
    by_weights = read_base_model(base)
    assert len(load_file(adapter / WEIGHTS)) == 2 * len([name for name in by_weights.modules if ".layers." in name])
    for file in base.glob("*.safetensors*"):
        file.unlink()
    by_config = read_base_model(base)
    assert dict(by_config.modules) == dict(by_weights.modules)
    assert check(adapter, model=base) == {}


def test_lora_on_fused_experts_is_refused(tmp_path: Path, check: Check) -> None:
    base = save_base(tmp_path / "base", "mixtral")
    adapter = save_adapter(base, tmp_path / "adapter", target_modules="all-linear")
    problems = check(adapter, model=base)
    assert "target_parameters" in problems
    assert "base_model.model.model.layers.0.mlp.experts.lora_A.weight" in problems


def test_a_model_that_vllm_serves_no_adapters_on_is_refused(tmp_path: Path, adapter: Path, check: Check) -> None:
    assert list(check(adapter, model=save_base(tmp_path / "base", "gpt2"))) == ["base"]


@pytest.mark.parametrize("architecture", ["qwen2", "mistral", "gemma2", "opt"])
def test_embeddings_are_refused_where_vllm_takes_no_lora_on_them(
    architecture: str, tmp_path: Path, check: Check
) -> None:
    base = save_base(tmp_path / "base", architecture)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "embed_tokens"])
    problems = check(adapter, model=base)
    assert problems
    assert all("embed_tokens" in field for field in problems)


def test_heads_of_another_width_than_the_hidden_size_says_are_taken_from_the_weights(
    tmp_path: Path, check: Check
) -> None:
    """Qwen3's head_dim is its own; q_proj is wider than the hidden size."""
    base = save_base(tmp_path / "base", "qwen3")
    config = json.loads((base / "config.json").read_text())
    assert read_base_model(base).modules["model.layers.0.self_attn.k_proj"] == (2 * config["head_dim"], 128)


def test_tied_embeddings(tmp_path: Path, check: Check) -> None:
    base = save_base(tmp_path / "base", tied=True, dtype="bfloat16")
    assert read_base_model(base).modules["lm_head"] == (256, 128)
    good = save_adapter(base, tmp_path / "good", target_modules=["embed_tokens", "q_proj"])
    assert check(good, model=base) == {}
    tied = save_adapter(base, tmp_path / "tied", target_modules=["embed_tokens", "q_proj"], ensure_weight_tying=True)
    assert "ensure_weight_tying" in check(tied, model=base)


def test_a_copy_of_the_base_that_was_trained_or_resized_is_refused(base: Path, tmp_path: Path, check: Check) -> None:
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["embed_tokens"])
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    tensors = load_file(adapter / WEIGHTS)
    assert name in tensors
    save_file({**tensors, name: tensors[name].to(torch.bfloat16)}, adapter / WEIGHTS)
    assert check(adapter) == {}
    changed = tensors[name].clone()
    changed[17] += 0.5
    save_file({**tensors, name: changed}, adapter / WEIGHTS)
    assert check(adapter)[name] == ("the base model's model.embed_tokens, which vLLM uses instead", "other values")
    save_file({**tensors, name: torch.cat([tensors[name], tensors[name][:8]])}, adapter / WEIGHTS)
    assert check(adapter)[name][1] == "F32 [264, 128]"


def test_an_adapter_of_another_base_is_refused_by_name_and_by_shape(tmp_path: Path, check: Check) -> None:
    import transformers as hf

    config = hf.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
                            num_key_value_heads=4, vocab_size=300)  # fmt: skip
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "Other-2B")
    problems = check(save_adapter(tmp_path / "Other-2B", tmp_path / "adapter", target_modules=ATTENTION))
    assert problems["base_model_name_or_path"][0] == "Tiny-1B-Instruct"
    assert problems["layers"] == ("0 to 3, as the base model", "4 to 5")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    assert problems[name] == (
        "shape [r, 128], as the base model's model.layers.0.self_attn.q_proj",
        "[4, 64] (and 3 more like it)",
    )


def test_an_adapter_of_a_shallower_model_is_refused(tmp_path: Path, check: Check) -> None:
    """vLLM loads it with 200 and serves it on the blocks that it has."""
    import transformers as hf

    config = hf.LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS - 2,
                            num_attention_heads=4, num_key_value_heads=2, vocab_size=256)  # fmt: skip
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "Tiny-1B-Instruct")
    adapter = save_adapter(tmp_path / "Tiny-1B-Instruct", tmp_path / "adapter", target_modules=["q_proj"])
    assert check(adapter) == {
        "target_modules": ("LoRA on self_attn.q_proj in layers 0 to 3, as it says", "it in layers 0 to 1")
    }
