"""adapter_config.json: what peft wrote, which of it vLLM can serve, and what is left of it in storage.

Read here rather than by peft, whose import brings torch and transformers, and which ignores what it doesn't know. What
vLLM refuses is refused (vllm/lora/peft_helper.py, 0.32.0), and so is what vLLM passes over in silence although the
adapter was trained with it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steerguard.adapters.module_patterns import (
    MAX_EXPRESSIONS,
    MAX_PATTERN_CHARS,
    Matcher,
    UnsafePattern,
    is_plain,
    suffix_matcher,
)
from steerguard.adapters.problems import Problems

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1024 * 1024
MAX_RANK = 4_096
MAX_PATTERNS = 2_000
MAX_NAMES = 2_000

# Inits that only set the first weights, so that a saved adapter is a plain LoRA; the others change the base's too.
PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")

# Each is off in these words, and an adapter in which it is on would be refused by vLLM, or served without it.
_OFF: dict[str, tuple[str, str]] = {
    "use_dora": ("false", "DoRA isn't served by vLLM"),
    "lora_bias": ("false", "biases aren't served by vLLM"),
    "use_qalora": ("false", "QALoRA isn't served by vLLM"),
    "use_bdlora": ("null", "block-diagonal LoRA isn't served by vLLM"),
    "alora_invocation_tokens": ("null", "activated LoRA isn't served by vLLM"),
    "layer_replication": ("null", "replicated layers aren't served by vLLM"),
    "modules_to_save": ("null", "whole modules aren't served by vLLM"),
    "trainable_token_indices": ("null", "trained tokens aren't served by vLLM"),
    "target_parameters": ("null", "LoRA on bare parameters (fused experts) isn't served here"),
    "fan_in_fan_out": ("false", "weights stored as (in, out) aren't served by vLLM"),
    "megatron_config": ("null", "Megatron's layers aren't served by vLLM"),
    "arrow_config": ("null", "Arrow's routing isn't served by vLLM"),
    "kasa_config": ("null", "KaSA isn't served by vLLM"),
    "monteclora_config": ("null", "MonteCLoRA isn't served by vLLM"),
    "velora_config": ("null", "VeLoRA isn't served by vLLM"),
}

# What says something about training, or is read below. `ensure_weight_tying` is looked at where embeddings are.
_KNOWN = frozenset(_OFF) | {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
    "eva_config", "exclude_modules", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version",
    "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip


@dataclass(frozen=True)
class AdapterConfig:
    """What the settings come to. Ranks and alphas are looked up by a module's name in the base model."""

    base_model: str
    r: int
    lora_alpha: float
    use_rslora: bool
    target_modules: list[str] | str
    exclude_modules: list[str] | str
    layers_to_transform: frozenset[int] | None
    layers_pattern: tuple[str, ...]
    ensure_weight_tying: bool
    rank_pattern: Mapping[str, int] = field(default_factory=dict)
    alpha_pattern: Mapping[str, float] = field(default_factory=dict)
    matchers: Mapping[str, Matcher] = field(default_factory=dict)

    def rank_of(self, module: str) -> tuple[int, str]:
        """A module's rank, and the field that says so. As peft: the first pattern that matches."""
        for pattern, rank in self.rank_pattern.items():
            if self.matchers[pattern](module):
                return rank, f"rank_pattern {pattern}"
        return self.r, "r"

    def alpha_of(self, module: str) -> float:
        for pattern, alpha in self.alpha_pattern.items():
            if self.matchers[pattern](module):
                return alpha
        return self.lora_alpha

    def scaling_of(self, module: str) -> float:
        """What B·A is multiplied by: alpha / r, or alpha / √r with rsLoRA (arXiv 2312.03732)."""
        rank = self.rank_of(module)[0]
        return self.alpha_of(module) / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(said: Mapping[str, Any], problems: Problems, *, max_lora_rank: int) -> AdapterConfig | None:
    """What the object in adapter_config.json means, with what is wrong added to `problems`.

    None when a setting without which nothing else can be checked is wrong.
    """
    if said.get("peft_type") != "LORA":
        problems.add("peft_type", "LORA", said.get("peft_type", "nothing"))
    task = said.get("task_type")
    if task not in (None, "CAUSAL_LM"):
        problems.add("task_type", "CAUSAL_LM, or null", task)
    _check_features(said, problems)
    base_model = said.get("base_model_name_or_path")
    if not isinstance(base_model, str) or not base_model.strip():
        problems.add("base_model_name_or_path", "the model that the adapter was trained on", base_model or "nothing")
        base_model = ""
    r = _rank("r", said.get("r", "nothing"), problems, max_lora_rank)
    alpha = _alpha("lora_alpha", said.get("lora_alpha", "nothing"), problems)
    rank_pattern = _pattern("rank_pattern", said, problems)
    alpha_pattern = _pattern("alpha_pattern", said, problems)
    ranks = {key: _rank(f"rank_pattern {key}", rank, problems, max_lora_rank) for key, rank in rank_pattern.items()}
    alphas = {key: _alpha(f"alpha_pattern {key}", value, problems) for key, value in alpha_pattern.items()}
    matchers = _matchers({"rank_pattern": rank_pattern, "alpha_pattern": alpha_pattern}, problems)
    targets = _names("target_modules", said.get("target_modules"), problems)
    if not targets:
        problems.add("target_modules", "the modules that the adapter changes", said.get("target_modules") or "nothing")
    layers = _layers(said.get("layers_to_transform"), problems)
    if r is None or alpha is None or None in ranks.values() or None in alphas.values() or matchers is None:
        return None
    return AdapterConfig(
        base_model=base_model,
        r=r,
        lora_alpha=alpha,
        use_rslora=said.get("use_rslora") is True,
        target_modules=targets,
        exclude_modules=_names("exclude_modules", said.get("exclude_modules"), problems),
        layers_to_transform=layers,
        layers_pattern=tuple(_listed(_names("layers_pattern", said.get("layers_pattern"), problems))),
        ensure_weight_tying=said.get("ensure_weight_tying") is True,
        rank_pattern={key: rank for key, rank in ranks.items() if rank is not None},
        alpha_pattern={key: value for key, value in alphas.items() if value is not None},
        matchers=matchers,
    )


def _check_features(said: Mapping[str, Any], problems: Problems) -> None:
    for name, (off, why) in _OFF.items():
        if said.get(name):
            problems.add(name, f"{off} ({why})", said[name])
    if said.get("bias", "none") != "none":
        problems.add("bias", "none (biases aren't served by vLLM)", said["bias"])
    for name in ("use_rslora", "ensure_weight_tying"):
        if not isinstance(said.get(name, False), bool):
            problems.add(name, "true or false", said[name])
    init = said.get("init_lora_weights", True)
    if isinstance(init, str):
        if init.lower() not in PLAIN_INITS:
            expected = f"true, false or one of {', '.join(PLAIN_INITS)} (others change the base model's weights)"
            problems.add("init_lora_weights", expected, init)
    elif init is not None and not isinstance(init, bool):
        problems.add("init_lora_weights", "true, false or a name", init)
    for name, value in said.items():
        if name not in _KNOWN and value not in (None, False, "", [], {}):
            problems.add(name, "a setting of peft 0.21 that vLLM serves, or nothing", value)


def _rank(name: str, value: object, problems: Problems, max_lora_rank: int) -> int | None:
    if type(value) is not int or not 1 <= value <= MAX_RANK:
        problems.add(name, f"an integer from 1 to {min(max_lora_rank, MAX_RANK)}", value)
        return None
    if value > max_lora_rank:
        problems.add(name, f"at most {max_lora_rank} (the engine's max_lora_rank)", str(value))
    return value


def _alpha(name: str, value: object, problems: Problems) -> float | None:
    """Of a number that is an integer, the integer: so 16 and 16.0 are stored alike."""
    try:
        number = float(value) if type(value) in (int, float) else math.nan  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        problems.add(name, "a finite number above 0", value)
        return None
    return int(number) if number.is_integer() else number


def _pattern(name: str, said: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    value = said.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_PATTERNS:
        problems.add(name, f"an object of at most {MAX_PATTERNS} patterns", type(value).__name__)
        return {}
    return value


def _matchers(patterns: Mapping[str, Mapping[str, Any]], problems: Problems) -> dict[str, Matcher] | None:
    matchers: dict[str, Matcher] = {}
    expressions = 0
    for name, keys in patterns.items():
        for key in keys:
            expressions += not is_plain(key)
            try:
                matchers[key] = suffix_matcher(key)
            except UnsafePattern:
                expected = f"module names, or expressions of at most {MAX_PATTERN_CHARS} characters without nesting"
                problems.add(f"{name} {key}", expected, key)
                return None
    if expressions > MAX_EXPRESSIONS:
        problems.add("rank_pattern, alpha_pattern", f"at most {MAX_EXPRESSIONS} expressions", str(expressions))
        return None
    return matchers


def _names(name: str, value: object, problems: Problems) -> list[str] | str:
    """A list of names, or one text; nothing where it is wrong."""
    if value is None:
        return []
    if isinstance(value, str) and len(value) <= MAX_PATTERN_CHARS * 10:
        return value
    if isinstance(value, list) and len(value) <= MAX_NAMES:
        if all(isinstance(one, str) and is_plain(one) for one in value):
            return value
        wrong = next(one for one in value if not (isinstance(one, str) and is_plain(one)))
        problems.add(name, "names of modules: letters, digits, _, - and dots", wrong)
        return []
    problems.add(name, f"a list of at most {MAX_NAMES} names, or text", type(value).__name__)
    return []


def _listed(names: list[str] | str) -> list[str]:
    return [names] if isinstance(names, str) else names


def _layers(value: object, problems: Problems) -> frozenset[int] | None:
    if value is None or value == []:
        return None
    layers = value if isinstance(value, list) else [value]
    if not all(type(layer) is int and 0 <= layer < 100_000 for layer in layers):
        problems.add("layers_to_transform", "0-based indices of decoder blocks", value)
        return None
    return frozenset(layers)
