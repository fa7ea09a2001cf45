"""Each architecture, block, runner and way of scheduling: vLLM with the plugin against Hugging Face with hooks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.steerguard.vllm.reference import LOGPROB_TOLERANCE, Reference
from tests.steerguard.vllm.runners import V2, answer_of, needs_triton
from tests.steerguard.vllm.tiny_models import ARCHITECTURES, TOKENS, asked, vector_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

# Workers are processes of their own where there is more than one; each gets a core.
WORKERS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def served(architecture: str, folder: Path, environment: dict[str, str], **engine: Any) -> dict[str, Any]:
    return answer_of(
        "tests.steerguard.vllm.tiny_models", architecture, str(folder), json.dumps(engine), environment=environment
    )


def assert_as_in_the_reference(answers: list[tuple[list[int], list[float]]], folder: Path) -> None:
    reference = Reference(folder)
    for (prompt, block, positions), (tokens, logprobs) in zip(asked(), answers, strict=True):
        row = vector_of(block).layers if block is not None else {}
        expected_tokens, expected_logprobs = reference.greedy_with_logprobs(
            prompt,
            TOKENS,
            prompt_row=row if positions in ("all", "prompt") else {},
            response_row=row if positions in ("all", "response") else {},
        )
        about = f"block {block}, {positions}, prompt of {len(prompt)}"
        assert tokens == expected_tokens, about
        assert logprobs == pytest.approx(expected_logprobs, abs=LOGPROB_TOLERANCE), about


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_block_is_steered_as_in_the_reference(architecture: str, tmp_path: Path) -> None:
    assert_as_in_the_reference(served(architecture, tmp_path, {})["answers"], tmp_path)


def test_a_compiled_model_is_steered_as_in_the_reference(tmp_path: Path) -> None:
    cache = {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    assert_as_in_the_reference(served("llama", tmp_path, cache, enforce_eager=False)["answers"], tmp_path)


def assert_unsteered_ones_are_the_same_to_the_bit(found: dict[str, Any]) -> None:
    assert found["beside_steered"]["unsteered"] == found["beside_unsteered"]["unsteered"]
    assert found["beside_steered"]["neighbors"] != found["beside_unsteered"]["neighbors"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_unsteered_request_is_the_same_to_the_bit_beside_steered_ones(tmp_path: Path, dtype: str) -> None:
    assert_unsteered_ones_are_the_same_to_the_bit(served("llama", tmp_path, {}, dtype=dtype))


def test_workers_in_tensor_parallel_steer_alike(tmp_path: Path) -> None:
    found = served("llama", tmp_path, WORKERS, tensor_parallel_size=2)
    assert found["state"]["workers"] == 2
    assert_as_in_the_reference(found["answers"], tmp_path)


def test_preempted_requests_go_on_steered(tmp_path: Path) -> None:
    found = served("llama", tmp_path, {}, num_gpu_blocks_override=12, block_size=32)
    assert found["counts"]["vllm:num_preemptions"] > 0
    assert_as_in_the_reference(found["answers"], tmp_path)


def test_draft_tokens_are_verified_steered(tmp_path: Path) -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    found = served("llama", tmp_path, {}, speculative_config=ngram)
    assert found["counts"]["vllm:spec_decode_num_draft_tokens"] > 0
    assert_as_in_the_reference(found["answers"], tmp_path)


def test_an_adapter_and_a_blend_go_together_in_one_request(tmp_path: Path) -> None:
    found = served("llama", tmp_path, {}, enable_lora=True, max_lora_rank=8)
    assert_as_in_the_reference(found["answers"], tmp_path / "adapter" / "merged")


@needs_triton
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
def test_model_runner_v2_steers_as_the_reference(architecture: str, tmp_path: Path) -> None:
    found = served(architecture, tmp_path, V2)
    assert_as_in_the_reference(found["answers"], tmp_path)
    assert_unsteered_ones_are_the_same_to_the_bit(found)


@needs_triton
@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_model_runner_v2_steers_in_parallel(parallel: str, tmp_path: Path) -> None:
    found = served("llama", tmp_path, {**V2, **WORKERS}, **{parallel: 2})
    assert found["state"]["workers"] == 2
    assert_as_in_the_reference(found["answers"], tmp_path)


def test_a_model_with_unknown_blocks_stops_the_start_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"can't steer .*GPTNeoX"):
        served("gpt_neox", tmp_path, {})
