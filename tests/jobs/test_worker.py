"""A real Celery worker, killed in the middle of an answer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from django.db import connection

from jobs import services
from personas.models import Persona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import StubEngine, chunk, streams
from tests.jobs.test_jobs import make, parse, text_of
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COMMAND = ["-m", "celery", "-A", "config", "-q", "worker", "--queues", "generation", "--pool", "threads"]


@pytest.fixture
def workers(transactional_db: None, valkey: redis.Redis) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Those started, which are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait(PATIENCE_S)


def start_worker() -> subprocess.Popen[bytes]:
    name = connection.settings_dict["NAME"]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": f"sqlite:///{name}",
        "REDIS_URL": settings.REDIS_URL,
        "SECRET_KEY": settings.SECRET_KEY,
        "DATA_DIR": str(settings.DATA_DIR),
    }
    command = [sys.executable, *COMMAND, "--without-gossip", "--without-mingle", "--concurrency", "2"]
    return subprocess.Popen(command, env=environment, cwd=settings.BASE_DIR)


def test_the_job_of_a_killed_worker_is_done_by_the_next(
    gateway: Gateway,
    acme_key: str,
    support: Persona,
    stub: StubEngine,
    workers: list[subprocess.Popen[bytes]],
) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("the worker is started with SQLite's URL")
    answers, stub.does = stub.does, streams(chunk("half an ans"), then="hangs")
    program = gateway.http(acme_key)
    made = make(program)
    workers.append(first := start_worker())
    assert stub.arrived.wait(PATIENCE_S)
    stub.does = answers
    first.send_signal(signal.SIGKILL)
    first.wait(PATIENCE_S)
    workers.append(start_worker())

    def is_done() -> bool:
        services.sweep()  # as the schedule does
        return bool(program.get(f"/v1/jobs/{made['id']}").json()["state"] == "succeeded")

    eventually(is_done, within_s=120)
    told = parse(program.get(made["stream_url"]).text)
    assert [kind for _, kind, _ in told].count("restarted") == 1
    assert text_of(told) == "Hello!"
    workers[1].terminate()
    workers[1].wait(PATIENCE_S)
