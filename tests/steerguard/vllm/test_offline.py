"""Offline use: the article's snippet works, and what can't be honored is a ValueError before anything is generated."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steerguard.vectors import SteeringVector, write_vector
from tests.engine import REPOSITORY
from tests.steerguard.vllm.reference import Reference

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

HIDDEN_SIZE = 576
SKILLS = {"safe_sql_generator": (10, 1.5), "sycophancy_reduction": (14, 1.2), "strict_json": (18, 1.0)}
PROMPTS = (
    "Audit user permissions for admin account",
    "Explain product return policy to unhappy user",
    "Format patient record",
)


def vector_of(block: int) -> SteeringVector:
    rng = np.random.default_rng(block)
    return SteeringVector({block: (rng.standard_normal(HIDDEN_SIZE) * 3).astype(np.float32)}, HIDDEN_SIZE)


def run(model: Path, vectors_dir: Path, plugins: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.steerguard.vllm.article", str(model), str(vectors_dir)]
    environment = {**os.environ, "VLLM_PLUGINS": plugins, "VLLM_CPU_KVCACHE_SPACE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY, timeout=500)


@pytest.fixture(scope="module")
def answers(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vectors")
    for skill, (block, _) in SKILLS.items():
        (folder / f"{skill}.safetensors").write_bytes(write_vector(vector_of(block)))
    finished = run(demo_model, folder, "steerguard")
    lines = [line for line in finished.stdout.splitlines() if line.startswith("ANSWER ")]
    assert lines, finished.stdout[-3000:] + finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWER "))
    return found


def test_the_articles_snippet_steers_each_prompt_by_its_own_skill(answers: dict[str, Any], demo_model: Path) -> None:
    reference = Reference(demo_model)
    for prompt, (block, alpha), tokens in zip(PROMPTS, SKILLS.values(), answers["steered"], strict=True):
        row = {block: alpha * vector_of(block).layers[block]}
        assert tokens == reference.greedy(reference.tokens(prompt), 10, prompt_row=row, response_row=row)


def test_requests_without_skills_are_not_steered(answers: dict[str, Any], demo_model: Path) -> None:
    reference = Reference(demo_model)
    for prompt, tokens in zip(PROMPTS, answers["plain"], strict=True):
        assert tokens == reference.greedy(reference.tokens(prompt), 10, prompt_row={}, response_row={})


def test_what_cannot_be_honored_is_refused_by_field(answers: dict[str, Any]) -> None:
    expected = ["steer_skill: expected one value per prompt (3)", "no_such_skill", "alpha", "steer_skill", "0" * 64]
    assert len(answers["refused"]) == len(expected)
    assert all(part in message for part, message in zip(expected, answers["refused"], strict=True))


def test_attach_says_when_the_plugin_is_not_loaded(demo_model: Path, tmp_path: Path) -> None:
    finished = run(demo_model, tmp_path, "none")
    assert finished.returncode != 0
    assert "runs without SteerGuard" in finished.stderr
