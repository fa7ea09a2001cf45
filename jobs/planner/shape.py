"""The shape of a model: what its sizes follow from. Dense decoders with gated feed-forward layers only."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.planner.errors import PlanError, require

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bits a weight of a linear layer takes. AWQ: 4, and per group of 128 a 16-bit scale and a 4-bit zero.
QUANTIZATION_BITS = {"none": None, "fp8": 8.0, "awq": 4 + 20 / 128}

ATTENTION_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_MODULES = ("gate_proj", "up_proj", "down_proj")
LINEAR_MODULES = ATTENTION_MODULES + MLP_MODULES


@dataclass(frozen=True)
class ModelShape:
    """What config.json says of a decoder.

    `hidden`, `intermediate`, `head_dim` are widths in elements; `layers`, `heads`, `kv_heads`, `vocab` counts; `dtype`
    is what activations, adapters, steering rows and the KV cache are held in; `quantization` is that of the linear
    layers' weights.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype: str = "bfloat16"
    tied_embeddings: bool = False
    qkv_bias: bool = False
    quantization: str = "none"

    def __post_init__(self) -> None:
        for field in ("hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate", "vocab"):
            value = getattr(self, field)
            require(type(value) is int and value > 0, field, "a whole number above 0", value)
        require(self.heads % self.kv_heads == 0, "kv_heads", f"a divisor of the {self.heads} heads", self.kv_heads)
        require(self.dtype in DTYPE_BYTES, "dtype", " or ".join(DTYPE_BYTES), self.dtype)
        known = " or ".join(QUANTIZATION_BITS)
        require(self.quantization in QUANTIZATION_BITS, "quantization", known, self.quantization)

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the residual stream."""
        return DTYPE_BYTES[self.dtype]

    def linear_sizes(self, module: str) -> tuple[int, int]:
        """(inputs, outputs) of one linear layer of a block, in elements. Raises PlanError for an unknown one."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q_proj": (self.hidden, wide),
            "k_proj": (self.hidden, narrow),
            "v_proj": (self.hidden, narrow),
            "o_proj": (wide, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        require(module in sizes, "modules", "some of " + ", ".join(LINEAR_MODULES), module)
        return sizes[module]

    @property
    def linear_parameters(self) -> int:
        """Weights of all blocks' linear layers, biases left out."""
        return self.layers * sum(a * b for a, b in map(self.linear_sizes, LINEAR_MODULES))

    @property
    def parameters(self) -> int:
        """All weights: linear layers, biases, norms, embeddings."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.linear_parameters + self.layers * (biases + norms) + self.hidden + embeddings

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; embeddings and norms are not quantized."""
        bits = QUANTIZATION_BITS[self.quantization]
        linear = self.linear_parameters
        linear_bytes = linear * self.itemsize if bits is None else round(linear * bits / 8)
        return linear_bytes + (self.parameters - linear) * self.itemsize

    def kv_bytes_per_token(self, gpus: int = 1) -> int:
        """Bytes of keys and values of one token on one of `gpus`, over which heads are shared out."""
        return 2 * self.layers * max(1, -(-self.kv_heads // gpus)) * self.head_dim * self.itemsize


def _preset(name: str, *sizes: int, **more: Any) -> ModelShape:
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocab = sizes
    return ModelShape(name, hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, **more)


# From the config.json of each on Hugging Face.
PRESETS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _preset("llama-3.1-8b", 4096, 32, 32, 8, 128, 14336, 128256),
        _preset("llama-3.3-70b", 8192, 80, 64, 8, 128, 28672, 128256),
        _preset("llama-3.3-70b-awq", 8192, 80, 64, 8, 128, 28672, 128256, dtype="float16", quantization="awq"),
        _preset("llama-2-7b", 4096, 32, 32, 32, 128, 11008, 32000, dtype="float16"),
        _preset("qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064, qkv_bias=True),
        _preset("qwen2.5-32b", 5120, 64, 40, 8, 128, 27648, 152064, qkv_bias=True),
        _preset("mistral-7b", 4096, 32, 32, 8, 128, 14336, 32000),
        _preset("smollm2-135m", 576, 30, 9, 3, 64, 1536, 49152, tied_embeddings=True),
    )
}
_SMALLEST_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")


def find_shape(model: str) -> ModelShape:
    """The preset of that name, or the shape of the model folder (or config.json) at that path.

    Raises PlanError naming `model`. Only a command gives paths to this; a page takes presets.
    """
    if model.lower() in PRESETS:
        return PRESETS[model.lower()]
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    known = f"{', '.join(PRESETS)}, or a folder with a config.json"
    if not file.is_file():
        raise PlanError("model", known, model)
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise PlanError("model", "a config.json that can be read", f"{file}: {error}") from None
    return shape_of_config(config, name=path.resolve().parent.name if path.is_file() else path.resolve().name)


def shape_of_config(config: Any, *, name: str) -> ModelShape:
    """The shape that a Hugging Face config.json describes. Raises PlanError naming `model`."""
    require(isinstance(config, dict), "model", "a config.json with an object", type(config).__name__)
    missing = [key for key in _SMALLEST_KEYS if type(config.get(key)) is not int]
    require(not missing, "model", "a config.json with whole numbers", f"none for {', '.join(missing)}")
    experts = next((key for key in ("num_local_experts", "n_routed_experts", "num_experts") if config.get(key)), None)
    require(experts is None, "model", "a dense model", f"{experts} {config.get(experts or '')}")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    require(heads > 0, "model", "attention heads", heads)
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        dtype=config.get("dtype") or config.get("torch_dtype") or "bfloat16",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=config.get("model_type") == "qwen2" or bool(config.get("attention_bias", False)),
    )
