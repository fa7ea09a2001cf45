"""Running vLLM in a process of its own, on Model Runner V1 or, under Triton's interpreter, V2."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine import REPOSITORY

INTERPRETED_TRITON = Path(__file__).parent / "interpreted_triton"
TRITON = REPOSITORY / "var" / "triton"

V1: dict[str, str] = {}
V2 = {
    "PYTHONPATH": f"{INTERPRETED_TRITON}{os.pathsep}{TRITON}",
    "TRITON_INTERPRET": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    # vLLM compiles a few small functions even when eager, and Inductor asks Triton for a driver that isn't there.
    "TORCHDYNAMO_DISABLE": "1",
}

needs_triton = pytest.mark.skipif(not TRITON.exists(), reason="`make triton` has not been run")


def answer_of(module: str, *arguments: str, environment: dict[str, str]) -> dict[str, Any]:
    """What `python -m module arguments` prints as JSON on its line that begins with ANSWER."""
    # In one process: a tiny model needs no worker of its own, and starts twice as fast.
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **settings},
        cwd=REPOSITORY,
        timeout=500,
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, run.stdout[-3000:] + run.stderr[-3000:]
    if "VLLM_USE_V2_MODEL_RUNNER" in environment:
        assert "Using V2 Model Runner" in run.stdout + run.stderr
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return found
