"""Tiny random models of each supported architecture, and one vLLM run over all their blocks.

`python -m tests.steerguard.vllm.tiny_models ARCHITECTURE FOLDER ENGINE_ARGUMENTS` makes the model in FOLDER, asks
vLLM for every block index and positions in one mixed batch, and prints what it answered as one JSON line. A process
of its own, because vLLM holds its engine for the life of one.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from safetensors.torch import save_file

from steerguard.vectors import SteeringVector

LAYERS = 4
HIDDEN_SIZE = 128
VOCABULARY = 256
TOKENS = 6
LORA_RANK = 8
# The last one crosses a KV block of 32 tokens while it is answered.
PROMPTS = ([5, 9, 200, 31, 7, 99, 14, 3, 77, 120], [17], [250 - 7 * i for i in range(30)])
POSITIONS = ("all", "prompt", "response")

_COMMON: dict[str, Any] = {
    "hidden_size": HIDDEN_SIZE,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def _config(kind: str, **more: Any) -> Any:
    return getattr(hf, kind)(**{**_COMMON, **more})


# Served by vLLM, but its blocks aren't among those that the plugin knows.
UNKNOWN = {"gpt_neox": lambda: _config("GPTNeoXConfig")}

ARCHITECTURES: dict[str, Any] = {
    "llama": lambda: _config("LlamaConfig"),
    "mistral": lambda: _config("MistralConfig", sliding_window=None),
    "qwen2": lambda: _config("Qwen2Config"),
    "qwen3": lambda: _config("Qwen3Config"),
    "gemma2": lambda: _config("Gemma2Config", query_pre_attn_scalar=32, sliding_window=64),
    "gemma3": lambda: _config("Gemma3TextConfig", query_pre_attn_scalar=32, sliding_window=64),
    "phi3": lambda: _config("Phi3Config"),
    "olmo2": lambda: _config("Olmo2Config"),
    "mixtral": lambda: _config("MixtralConfig", num_local_experts=4, sliding_window=None),
    "gpt2": lambda: hf.GPT2Config(
        n_embd=HIDDEN_SIZE,
        n_layer=LAYERS,
        n_head=4,
        n_positions=128,
        vocab_size=VOCABULARY,
        initializer_range=0.15,
        bos_token_id=1,
        eos_token_id=0,
    ),
    "opt": lambda: hf.OPTConfig(
        hidden_size=HIDDEN_SIZE,
        word_embed_proj_dim=HIDDEN_SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        ffn_dim=256,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        init_std=0.15,
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=0,
    ),
}


def save_tiny_model(architecture: str, folder: Path) -> None:
    """Random weights, the same each time, in float32."""
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(
        {**ARCHITECTURES, **UNKNOWN}[architecture](), dtype=torch.float32
    ).save_pretrained(folder)


def save_adapter(model: Path, folder: Path) -> None:
    """A random LoRA adapter for a tiny Llama in `folder`, and beside it the model with it merged in."""
    generator = torch.Generator().manual_seed(1)
    merged = hf.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tensors = {}
    for name, module in merged.named_modules():
        if name.endswith(("q_proj", "v_proj", "down_proj")):
            a = torch.randn(LORA_RANK, module.in_features, generator=generator) * 0.1
            b = torch.randn(module.out_features, LORA_RANK, generator=generator) * 0.1
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            module.weight.data += b @ a  # alpha / rank is 1
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": LORA_RANK,
        "lora_alpha": LORA_RANK,
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "bias": "none",
        "base_model_name_or_path": str(model),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    merged.save_pretrained(folder / "merged")


def vector_of(block: int) -> SteeringVector:
    """One vector for each block, large enough to change what is answered."""
    rng = np.random.default_rng(block)
    return SteeringVector({block: (rng.standard_normal(HIDDEN_SIZE) * 3).astype(np.float32)}, HIDDEN_SIZE)


Asked = tuple[list[int], int | None, str]
Answer = tuple[list[int], list[float]]


def asked() -> list[Asked]:
    """(prompt, steered block or None, positions) of each request, steered and unsteered ones mixed."""
    steered = [(p, block, positions) for p in PROMPTS for block in range(LAYERS) for positions in POSITIONS]
    return [*((p, None, "all") for p in PROMPTS), *steered, *((p, None, "all") for p in PROMPTS)]


def spec(digest: str, positions: str) -> dict[str, Any]:
    return {"blend": [{"vector": digest, "alpha": 1.0, "positions": positions}], "max_dose": 8}


def answer(folder: Path, **engine: Any) -> dict[str, Any]:
    """Greedy tokens and their logprobs from vLLM, for all of `asked()` in one batch; vLLM's own counts; and the same
    unsteered requests once beside steered and once beside unsteered neighbors, in batches of the same shape.
    """
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    from steerguard.integrations.vllm import SteerGuardPlugin

    llm = LLM(
        str(folder),
        skip_tokenizer_init=True,
        max_model_len=64,
        max_num_seqs=64,
        max_num_batched_tokens=64,  # the batch's prefill is chunked
        disable_log_stats=False,
        **{"enforce_eager": True, "dtype": "float32", **engine},
    )
    adapter = LoRARequest("adapter", 1, str(folder / "adapter")) if engine.get("enable_lora") else None
    plugin = SteerGuardPlugin.attach(llm)
    digests = [plugin.register(vector_of(block)) for block in range(LAYERS)]

    def ask(requests: Sequence[Asked]) -> list[Answer]:
        parameters = [
            SamplingParams(
                temperature=0,
                max_tokens=TOKENS,
                ignore_eos=True,
                detokenize=False,
                logprobs=0,
                skip_reading_prefix_cache=True,
                extra_args=None if block is None else {"steerguard": spec(digests[block], positions)},
            )
            for _, block, positions in requests
        ]
        prompts: Any = [{"prompt_token_ids": p} for p, _, _ in requests]
        outputs: Any = llm.generate(prompts, parameters, use_tqdm=False, lora_request=adapter)
        return [
            (
                list(o.outputs[0].token_ids),
                [float(e[t].logprob) for t, e in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)],
            )
            for o in outputs
        ]

    def beside(block: int | None) -> dict[str, list[Answer]]:
        answers = ask([request for p in PROMPTS for request in ((p, None, "all"), (p, block, "all"))])
        return {"unsteered": answers[::2], "neighbors": answers[1::2]}

    answers = ask(asked())
    bits = {"beside_steered": beside(0), "beside_unsteered": beside(None)}
    counts = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    return {"answers": answers, "counts": counts, "state": plugin.state(), **bits}


if __name__ == "__main__":
    architecture, folder = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_PLUGINS"] = "steerguard"
    if not (folder / "config.json").exists():
        save_tiny_model(architecture, folder)
    if json.loads(sys.argv[3]).get("enable_lora"):
        save_adapter(folder, folder / "adapter")
    print("ANSWER", json.dumps(answer(folder, **json.loads(sys.argv[3]))))
