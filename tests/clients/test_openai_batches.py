"""Files and batches through OpenAI's clients for Python and Node, unchanged."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from openai.types import Batch

from jobs import tasks, worker
from personas.models import Persona
from tests.clients.test_openai_node import SOURCE, script
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import StubEngine
from tests.jobs.test_batches import as_file, echo, line
from tests.waiting import PATIENCE_S

__all__ = ["script"]  # a fixture

IDS = [f"line {number}" for number in range(10)]
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture
def at_work(
    transactional_db: None, valkey: redis.Redis, stub: StubEngine, support: Persona, settings: Any, tmp_path: Path
) -> Iterator[None]:
    """A worker that has nothing else to do, and an engine that answers with what it was asked."""
    settings.DATA_DIR = tmp_path
    stub.does = echo
    stopped = threading.Event()

    def ring() -> None:
        while not stopped.wait(0.1):
            tasks.run_next("batch")  # as Celery would, of which a test has none

    ringing = threading.Thread(target=ring)
    ringing.start()
    yield
    stopped.set()
    ringing.join()
    worker.close_loop()


@pytest.fixture
def requests_file(tmp_path: Path) -> Path:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(as_file(map(line, IDS)))
    return path


def texts_of(output: str) -> list[str]:
    lines = [json.loads(one) for one in output.splitlines()]
    assert [one["custom_id"] for one in lines] == IDS
    return [one["response"]["body"]["choices"][0]["message"]["content"] for one in lines]


@pytest.mark.usefixtures("at_work")
def test_python(gateway: Gateway, acme_key: str, requests_file: Path) -> None:
    client = gateway.openai(acme_key)
    with requests_file.open("rb") as content:
        file = client.files.create(
            file=content, purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    assert (file.purpose, file.filename, file.status) == ("batch", "letters.jsonl", "processed")
    assert file.bytes == requests_file.stat().st_size and file.expires_at == file.created_at + 3600

    def create(**more: Any) -> Batch:
        return client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
        )

    batch = wait(client, create(metadata={"from": "python"}))
    assert batch.status == "completed" and batch.metadata == {"from": "python"}
    assert batch.request_counts is not None and batch.request_counts.completed == len(IDS)
    assert batch.output_file_id is not None and batch.error_file_id is None
    assert texts_of(client.files.content(batch.output_file_id).text) == IDS

    later = client.batches.cancel(create().id)
    assert later.cancelling_at is not None and wait(client, later).status in ("cancelled", "completed")

    assert [one.id for one in client.batches.list(limit=1)] == [later.id, batch.id]
    listed = [one.id for one in client.files.list(limit=1, order="asc")]
    assert listed[:2] == [file.id, batch.output_file_id]
    assert client.files.retrieve(file.id) == file
    deleted = client.files.delete(file.id)
    assert deleted.deleted and deleted.id == file.id
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError):
        client.files.content(file.id)
    with pytest.raises(openai.NotFoundError):
        create()


@pytest.mark.usefixtures("at_work")
def test_python_is_told_what_is_wrong_with_a_file(gateway: Gateway, acme_key: str) -> None:
    client = gateway.openai(acme_key)
    file = client.files.create(file=("a.jsonl", as_file([line("1"), b"{", line("1")])), purpose="batch")
    made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = wait(client, made)
    assert batch.status == "failed" and batch.errors is not None and batch.errors.data is not None
    told = [(error.code, error.line) for error in batch.errors.data]
    assert told == [("invalid_json_line", 2), ("duplicate_custom_id", 3)]
    with pytest.raises(openai.BadRequestError) as refusal:
        client.files.create(file=("a.jsonl", b"x"), purpose="assistants")
    assert refusal.value.param == "purpose"


def wait(client: openai.OpenAI, batch: Batch) -> Batch:
    deadline_s = time.monotonic() + PATIENCE_S
    while batch.status not in ENDED:
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed (apt install nodejs npm)")
@pytest.mark.usefixtures("at_work")
def test_node(script: Path, gateway: Gateway, acme_key: str, requests_file: Path) -> None:
    copied = shutil.copy(SOURCE / "batch.js", script.parent)
    node = subprocess.run(
        ["node", str(copied), f"{gateway.url}/v1", acme_key, str(requests_file)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert node.returncode == 0, node.stderr
    told = json.loads(node.stdout)
    assert told["made"]["status"] == "validating" and told["batch"]["status"] == "completed"
    assert told["batch"]["metadata"] == {"from": "node"}
    assert texts_of(told["output"]) == IDS
    assert told["cancelled"]
    assert len(told["batches"]) == 2 and told["batches"][1] == told["batch"]["id"]
    assert told["file"]["filename"] == "letters.jsonl" and told["file"]["id"] in told["files"]
    assert told["deleted"] == {"id": told["file"]["id"], "object": "file", "deleted": True}
    assert [(one["error"], one["status"]) for one in told["refusals"]] == [
        ("NotFoundError", 404),
        ("NotFoundError", 404),
        ("BadRequestError", 400),
    ]
    assert told["refusals"][2]["param"] == "endpoint"
