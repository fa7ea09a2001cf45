"""Model shapes: the number of weights is the one that each model is known by."""

import json
from pathlib import Path

import pytest

from jobs.planner.errors import PlanError
from jobs.planner.shape import PRESETS, find_shape, shape_of_config

CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.3-70b", 70_553_706_496),
        ("llama-2-7b", 6_738_415_616),
        ("qwen2.5-7b", 7_615_616_512),
        ("mistral-7b", 7_241_732_096),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_counts_the_weights_that_a_model_has(name: str, parameters: int) -> None:
    shape = PRESETS[name]
    assert shape.parameters == parameters
    assert shape.weight_bytes == 2 * parameters


def test_quantization_leaves_embeddings_alone() -> None:
    whole, awq = PRESETS["llama-3.3-70b"], PRESETS["llama-3.3-70b-awq"]
    rest = (whole.parameters - whole.linear_parameters) * 2
    assert awq.weight_bytes - rest == round(whole.linear_parameters * (4 + 20 / 128) / 8)


def test_keys_and_values_are_shared_out_over_gpus_until_a_head_is_left_for_each() -> None:
    shape = PRESETS["llama-3.1-8b"]
    assert shape.kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2
    assert [shape.kv_bytes_per_token(gpus) * gpus / shape.kv_bytes_per_token() for gpus in (2, 8, 16)] == [1, 1, 2]


def test_reads_the_shape_of_a_model_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for path in (tmp_path, tmp_path / "config.json"):
        found = find_shape(str(path))
        assert found.name == tmp_path.name
        assert found.parameters == PRESETS["smollm2-135m"].parameters
        assert found.head_dim == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "30"}, "num_hidden_layers"),
        ({"num_local_experts": 8}, "dense"),
        ({"dtype": "int8"}, "float32 or bfloat16"),
        ({"num_key_value_heads": 4}, "divisor of the 9 heads"),
    ],
)
def test_says_what_is_wrong_with_a_config(change: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        shape_of_config(CONFIG | change, name="x")


@pytest.mark.parametrize("text", ["", "nonsense", "{", "[]"])
def test_an_unreadable_config_names_the_model(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(PlanError) as error:
        find_shape(str(tmp_path))
    assert error.value.field == "model"


def test_an_unknown_model_names_those_there_are() -> None:
    with pytest.raises(PlanError, match=r"model: expected llama-3\.1-8b, .* found gpt-9"):
        find_shape("gpt-9")
