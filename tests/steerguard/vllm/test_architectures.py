"""Each architecture, block, runner and way of scheduling: vLLM with the plugin against Hugging Face with hooks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine import REPOSITORY
from tests.steerguard.vllm.reference import Reference
from tests.steerguard.vllm.tiny_models import ARCHITECTURES, TOKENS, asked, vector_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LOGPROB_TOLERANCE = 2e-3
INTERPRETED_TRITON = Path(__file__).parent / "interpreted_triton"
TRITON = REPOSITORY / "var" / "triton"

V2 = {
    "PYTHONPATH": f"{INTERPRETED_TRITON}{os.pathsep}{TRITON}",
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    # vLLM compiles a few small functions even when eager, and Inductor asks Triton for a driver that isn't there.
    "TORCHDYNAMO_DISABLE": "1",
}
# Workers are processes of their own where there is more than one; each gets a core.
WORKERS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}

needs_triton = pytest.mark.skipif(not TRITON.exists(), reason="`make triton` has not been run")


def served(architecture: str, folder: Path, environment: dict[str, str], **engine: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.steerguard.vllm.tiny_models", architecture, str(folder), json.dumps(engine)]
    # In one process: a tiny model needs no worker of its own, and starts twice as fast.
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **settings}, cwd=REPOSITORY, timeout=500
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, run.stdout[-3000:] + run.stderr[-3000:]
    if "VLLM_USE_V2_MODEL_RUNNER" in environment:
        assert "Using V2 Model Runner" in run.stdout + run.stderr
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return found


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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_unsteered_request_is_the_same_to_the_bit_beside_steered_ones(tmp_path: Path, dtype: str) -> None:
    found = served("llama", tmp_path, {}, dtype=dtype)
    assert found["beside_steered"]["unsteered"] == found["beside_unsteered"]["unsteered"]
    assert found["beside_steered"]["neighbors"] != found["beside_unsteered"]["neighbors"]


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
    assert_as_in_the_reference(served(architecture, tmp_path, V2)["answers"], tmp_path)


@needs_triton
@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_model_runner_v2_steers_in_parallel(parallel: str, tmp_path: Path) -> None:
    found = served("llama", tmp_path, {**V2, **WORKERS}, **{parallel: 2})
    assert found["state"]["workers"] == 2
    assert_as_in_the_reference(found["answers"], tmp_path)


def test_a_model_with_unknown_blocks_stops_the_start_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"can't steer .*GPTNeoX"):
        served("gpt_neox", tmp_path, {})
