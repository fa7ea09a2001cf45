"""Every supported architecture, every block index: vLLM with the plugin against Hugging Face with hooks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import REPOSITORY
from tests.steerguard.vllm.reference import Reference
from tests.steerguard.vllm.tiny_models import ARCHITECTURES, TOKENS, asked, vector_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LOGPROB_TOLERANCE = 2e-3


def served(architecture: str, folder: Path, **environment: str) -> list[tuple[list[int], list[float]]]:
    command = [sys.executable, "-m", "tests.steerguard.vllm.tiny_models", architecture, str(folder)]
    # In one process: a tiny model needs no worker of its own, and starts twice as fast.
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, timeout=500)
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, run.stdout[-3000:] + run.stderr[-3000:]
    return [(tokens, logprobs) for tokens, logprobs in json.loads(lines[-1].removeprefix("ANSWER "))]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_block_is_steered_as_in_the_reference(architecture: str, tmp_path: Path) -> None:
    answers = served(architecture, tmp_path)
    reference = Reference(tmp_path)
    for (prompt, block, positions), (tokens, logprobs) in zip(asked(), answers, strict=True):
        row = vector_of(block).layers if block is not None else {}
        expected_tokens, expected_logprobs = reference.greedy_with_logprobs(
            prompt,
            TOKENS,
            prompt_row=row if positions in ("all", "prompt") else {},
            response_row=row if positions in ("all", "response") else {},
        )
        about = f"{architecture}, block {block}, {positions}, prompt of {len(prompt)}"
        assert tokens == expected_tokens, about
        assert logprobs == pytest.approx(expected_logprobs, abs=LOGPROB_TOLERANCE), about
