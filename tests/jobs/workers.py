"""Real Celery workers as processes of their own, which may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from deploy.local.lifetime import end_with_parent
from tests.waiting import PATIENCE_S

COMMAND = ["-m", "celery", "-A", "config", "-q", "worker", "--queues", "generation,batch", "--pool", "threads"]
LEASE_S = 10  # a worker that is alive is not to lose its jobs because the machine is busy


class Workers:
    """Those that run. Each has the test's database, Valkey and folder."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *, lease_s: float = LEASE_S) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": database_url(),
            "REDIS_URL": settings.REDIS_URL,
            "SECRET_KEY": settings.SECRET_KEY,
            "DATA_DIR": str(settings.DATA_DIR),
            "JOBS_LEASE_S": str(lease_s),
        }
        command = [sys.executable, *COMMAND, "--without-gossip", "--without-mingle", "--concurrency", "1"]
        process = subprocess.Popen(command, env=environment, cwd=settings.BASE_DIR, preexec_fn=end_with_parent)
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """As one is told to; returns its exit status."""
        self.running.remove(process)
        process.terminate()
        return process.wait(PATIENCE_S)


@contextmanager
def workers_of_their_own() -> Iterator[Workers]:
    workers = Workers()
    try:
        yield workers
    finally:
        for process in list(workers.running):
            workers.kill(process)


def database_url() -> str:
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{database['NAME']}"
    address = f"{database['HOST']}:{database['PORT']}" if database["PORT"] else database["HOST"]
    return f"postgres://{database['USER']}:{database['PASSWORD']}@{address}/{database['NAME']}"
