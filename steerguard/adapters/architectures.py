"""Which modules vLLM applies LoRA to, for each architecture that SteerGuard serves, and what shape they have.

vLLM takes LoRA on every linear layer of a model that declares SupportsLoRA, and on the embeddings that its class
names in `embedding_modules` (vllm/lora/utils.py, vllm/model_executor/models/*.py). A module that isn't listed is
refused: vLLM would fail to load the adapter, or load it without the module and say nothing. Experts of
mixture-of-experts models are left out on purpose: peft and vLLM lay their tensors out in ways that differ by version.
Checked against vLLM 0.32.0, whose classes tests/steerguard/adapters/test_vllm_parity.py asks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, int]
"""(out, in) of a linear layer's weight; (vocabulary, width) of an embedding's."""


@dataclass(frozen=True)
class Sizes:
    """What a config.json says about widths, with the defaults that transformers has."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def query(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Architecture:
    """`block_modules` are relative to a decoder block, `blocks` is where the blocks are.

    `embeddings` are the modules outside of blocks that vLLM takes LoRA on; the rest of `outside` it does not.
    """

    block_modules: Mapping[str, Callable[[Sizes], Shape]]
    blocks: str = "model.layers"
    embedding: str = "model.embed_tokens"
    output: str = "lm_head"
    embeddings: frozenset[str] = frozenset()


def _attention(output: str = "o_proj") -> dict[str, Callable[[Sizes], Shape]]:
    return {
        "self_attn.q_proj": lambda s: (s.query, s.hidden),
        "self_attn.k_proj": lambda s: (s.key_value, s.hidden),
        "self_attn.v_proj": lambda s: (s.key_value, s.hidden),
        f"self_attn.{output}": lambda s: (s.hidden, s.query),
    }


_GATED_MLP: dict[str, Callable[[Sizes], Shape]] = {
    "mlp.gate_proj": lambda s: (s.intermediate, s.hidden),
    "mlp.up_proj": lambda s: (s.intermediate, s.hidden),
    "mlp.down_proj": lambda s: (s.hidden, s.intermediate),
}
_DENSE = {**_attention(), **_GATED_MLP}
_BOTH_ENDS = frozenset({"model.embed_tokens", "lm_head"})

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": Architecture(_DENSE, embeddings=_BOTH_ENDS),
    "MistralForCausalLM": Architecture(_DENSE),
    "Qwen2ForCausalLM": Architecture(_DENSE),
    "Qwen3ForCausalLM": Architecture(_DENSE, embeddings=_BOTH_ENDS),
    "Gemma2ForCausalLM": Architecture(_DENSE),
    "Gemma3ForCausalLM": Architecture(_DENSE),
    "Olmo2ForCausalLM": Architecture(_DENSE, embeddings=frozenset({"model.embed_tokens"})),
    "Phi3ForCausalLM": Architecture(
        {
            "self_attn.qkv_proj": lambda s: (s.query + 2 * s.key_value, s.hidden),
            "self_attn.o_proj": lambda s: (s.hidden, s.query),
            "mlp.gate_up_proj": lambda s: (2 * s.intermediate, s.hidden),
            "mlp.down_proj": lambda s: (s.hidden, s.intermediate),
        },
        embeddings=_BOTH_ENDS,
    ),
    "MixtralForCausalLM": Architecture(_attention(), embeddings=_BOTH_ENDS),
    "OPTForCausalLM": Architecture(
        {
            **_attention("out_proj"),
            "fc1": lambda s: (s.intermediate, s.hidden),
            "fc2": lambda s: (s.hidden, s.intermediate),
        },
        blocks="model.decoder.layers",
        embedding="model.decoder.embed_tokens",
    ),
}

# Steered by the plugin, but vLLM's class doesn't declare SupportsLoRA.
WITHOUT_LORA = frozenset({"GPT2LMHeadModel"})


def read_sizes(config: Mapping[str, Any]) -> Sizes:
    """Raises KeyError for a size that is missing, ValueError for one that is no positive integer."""
    hidden = _size(config, "hidden_size")
    heads = _size(config, "num_attention_heads")
    head_dim = config.get("head_dim")
    if config.get("model_type") == "qwen3" and head_dim is None:
        head_dim = 128  # what transformers' Qwen3Config assumes
    if config.get("model_type") in ("gemma2", "gemma3_text") and head_dim is None:
        head_dim = 256
    kv_heads = config.get("num_key_value_heads")
    return Sizes(
        hidden=hidden,
        intermediate=_size(config, "ffn_dim" if "ffn_dim" in config else "intermediate_size"),
        heads=heads,
        kv_heads=heads if kv_heads is None else _size(config, "num_key_value_heads"),
        head_dim=max(hidden // heads, 1) if head_dim is None else _positive("head_dim", head_dim),
        vocabulary=_size(config, "vocab_size"),
    )


def _size(config: Mapping[str, Any], name: str) -> int:
    return _positive(name, config[name])


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}")
    return value
