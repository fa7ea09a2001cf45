"""adapter_config.json, one setting wrong at a time."""

from pathlib import Path
from typing import Any

import pytest

from steerguard.adapters import NamePolicy
from steerguard.adapters.config import MAX_CONFIG_BYTES
from tests.steerguard.adapters.conftest import Check
from tests.steerguard.adapters.making import CONFIG, edit_config

WRONG: list[tuple[str, Any]] = [
    ("peft_type", "PROMPT_TUNING"), ("peft_type", ...), ("peft_type", "lora"), ("peft_type", ["LORA"]),
    ("task_type", "SEQ_CLS"),
    ("base_model_name_or_path", ...), ("base_model_name_or_path", None), ("base_model_name_or_path", ""),
    ("base_model_name_or_path", "acme/Tiny-1B"), ("base_model_name_or_path", "Tiny-1B-Instruct-v2"),
    ("base_model_name_or_path", 7),
    ("r", ...), ("r", 0), ("r", -4), ("r", 4.0), ("r", "4"), ("r", True), ("r", None), ("r", 10**30), ("r", 17),
    ("r", 8),
    ("lora_alpha", ...), ("lora_alpha", 0), ("lora_alpha", -1), ("lora_alpha", "8"), ("lora_alpha", None),
    ("lora_alpha", 10**400), ("lora_alpha", True), ("lora_alpha", [8]),
    ("rank_pattern", []), ("rank_pattern", {"q_proj": 8}), ("rank_pattern", {"q_proj": "4"}),
    ("rank_pattern", {"(a+)+$": 4}), ("rank_pattern", {"(q|q)_proj": 4}), ("rank_pattern", {"": 4}),
    ("alpha_pattern", "q_proj"), ("alpha_pattern", {"q_proj": 0}), ("alpha_pattern", {"q_proj": None}),
    ("alpha_pattern", {"((x*)*)*": 1}), ("alpha_pattern", {r"(q)\1": 1}),
    ("target_modules", ...), ("target_modules", []), ("target_modules", None), ("target_modules", ["q_proj"]),
    ("target_modules", ["q_proj", "down_proj", "v_proj"]), ("target_modules", ["q_proj", 7]),
    ("target_modules", {"q_proj": 1}), ("target_modules", r".*\.q_proj"), ("target_modules", ["../q_proj"]),
    ("exclude_modules", ["q_proj"]), ("layers_to_transform", [0, 1]), ("layers_to_transform", "all"),
    ("layers_to_transform", [-1]),
    ("bias", "lora_only"), ("use_dora", True), ("use_dora", 1), ("use_rslora", "yes"), ("lora_bias", True),
    ("fan_in_fan_out", True), ("modules_to_save", ["lm_head"]), ("modules_to_save", ["score"]),
    ("layer_replication", [[0, 4], [2, 4]]), ("use_qalora", True), ("use_bdlora", {"nblocks": 2}),
    ("megatron_config", {"x": 1}), ("arrow_config", {"top_k": 2}), ("target_parameters", ["experts.gate_up_proj"]),
    ("trainable_token_indices", [1]), ("alora_invocation_tokens", [3]), ("kasa_config", {"beta": 1}),
    ("init_lora_weights", "pissa_niter_16"), ("init_lora_weights", "loftq"), ("init_lora_weights", 3),
    ("use_future_lora", True),
]  # fmt: skip

# What leaves modules out is not wrong in itself: there are tensors for them.
SHOWS_IN = {"exclude_modules": "target_modules", "layers_to_transform": "target_modules"}


@pytest.mark.parametrize(("setting", "value"), WRONG, ids=[f"{name}={value!r}"[:60] for name, value in WRONG])
def test_a_wrong_setting_is_named(adapter: Path, check: Check, setting: str, value: Any) -> None:
    edit_config(adapter, **{setting: value})
    fields = {field.split()[0] for field in check(adapter)}
    assert fields & {setting, SHOWS_IN.get(setting, setting)}, fields


HARMLESS: list[tuple[str, Any]] = [
    ("task_type", None), ("lora_alpha", 8.5), ("lora_dropout", 0.5), ("inference_mode", False), ("revision", "main"),
    ("rank_pattern", None), ("alpha_pattern", {}), ("loftq_config", {}), ("peft_version", "0.99"),
    ("auto_mapping", {"base_model_class": "LlamaForCausalLM"}), ("a_new_setting_that_is_off", False),
    ("a_new_setting_that_is_nothing", None), ("init_lora_weights", "EVA"), ("modules_to_save", []),
    ("rank_pattern", {"k_proj": 16}), ("target_modules", "all-linear-but-unknown|(?!x).*"),
    ("base_model_name_or_path", "acme/tiny-1b-instruct"), ("base_model_name_or_path", "/srv/models/Tiny-1B-Instruct/"),
    ("base_model_name_or_path", "C:\\models\\Tiny-1B-Instruct"),
    ("base_model_name_or_path", "/srv/models/.cache/huggingface/hub/models--acme--Tiny-1B-Instruct/snapshots/0123abcd"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "value"), HARMLESS, ids=[f"{name}={value!r}"[:60] for name, value in HARMLESS])
def test_what_makes_no_difference_is_accepted(adapter: Path, check: Check, setting: str, value: Any) -> None:
    edit_config(adapter, **{setting: value})
    assert check(adapter) == {}


def test_all_problems_are_listed_at_once(adapter: Path, check: Check) -> None:
    edit_config(adapter, peft_type="LOHA", r=64, lora_alpha=0, use_dora=True, bias="all", base_model_name_or_path="x")
    assert {"peft_type", "r", "lora_alpha", "use_dora", "bias", "base_model_name_or_path"} <= check(adapter).keys()


def test_the_tuned_model_is_told_from_its_base(adapter: Path, check: Check) -> None:
    edit_config(adapter, base_model_name_or_path="acme/Tiny-1B")
    expected, found = check(adapter)["base_model_name_or_path"]
    assert expected.startswith("Tiny-1B-Instruct (one is tuned")
    assert found == "acme/Tiny-1B"


def test_the_name_policy_may_be_exact_and_may_know_other_names(adapter: Path, check: Check, base: Path) -> None:
    assert check(adapter, name_policy=NamePolicy.EXACT) == {}  # the path it was trained from
    edit_config(adapter, base_model_name_or_path="acme/Tiny-1B-Instruct")
    assert list(check(adapter, name_policy=NamePolicy.EXACT)) == ["base_model_name_or_path"]
    assert check(adapter, name_policy=NamePolicy.EXACT, base_names=["acme/Tiny-1B-Instruct"]) == {}
    edit_config(adapter, base_model_name_or_path="acme/The-Tiny-One")
    assert check(adapter, base_names=["acme/The-Tiny-One"]) == {}


def test_a_rank_that_the_tensors_do_not_have_is_said_once(adapter: Path, check: Check) -> None:
    """vLLM serves r=2 on tensors of rank 4 twice as strong."""
    edit_config(adapter, r=2)
    expected, found = check(adapter)["r"]
    assert expected == "4, the rank of the tensors"
    assert found.startswith("2, where base_model.model.model.layers.0.mlp.down_proj.lora_A.weight has shape [4, 256]")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"7", b'"x"', b"\xff{}", b'{"r": 4, "r": 8}', b'{"r": NaN}', b'{"lora_alpha": Infinity}',
        b"[" * 100_000, b'{"r": ' + b"9" * 5_000 + b"}", b"{} {}", b"{'r': 4}",
    ],
)  # fmt: skip
def test_text_that_is_no_object_is_refused(adapter: Path, check: Check, text: bytes) -> None:
    (adapter / CONFIG).write_bytes(text)
    assert list(check(adapter)) == [CONFIG]


def test_a_config_too_long_to_be_one_is_not_read(adapter: Path, check: Check) -> None:
    (adapter / CONFIG).write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    assert check(adapter)[CONFIG] == (f"at most {MAX_CONFIG_BYTES} bytes", f"{MAX_CONFIG_BYTES + 1} bytes")


def test_what_a_message_shows_is_short_and_printable(adapter: Path, check: Check) -> None:
    edit_config(adapter, base_model_name_or_path="x\n\u202e" * 10_000)
    _expected, found = check(adapter)["base_model_name_or_path"]
    assert len(found) <= 300
    assert found.isprintable()
