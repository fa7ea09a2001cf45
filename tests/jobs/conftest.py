"""The gateway with a stub engine, and a worker in this process."""

import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from django.db import connections

from jobs import tasks, worker
from tests.inference.gateway.conftest import acme_key, gateway, globex_key, register, stub, support
from tests.waiting import PATIENCE_S

__all__ = ["acme_key", "gateway", "globex_key", "register", "stub", "support"]  # fixtures

Work = Callable[[], threading.Thread]


@pytest.fixture
def work(transactional_db: None, valkey: redis.Redis) -> Iterator[Work]:
    """Runs the job whose turn it is, as Celery would, in a thread that is returned."""
    threads = []

    def run_next() -> None:
        try:
            tasks.run_next("generation")
        finally:
            connections.close_all()  # as Celery does after a task

    def work() -> threading.Thread:
        threads.append(thread := threading.Thread(target=run_next))
        thread.start()
        return thread

    yield work
    worker.give_up_all()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    worker.close_loop()
