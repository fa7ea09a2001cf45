"""The gateway with a stub engine, and a worker in this process."""

import threading
from collections.abc import Callable, Iterator

import pytest
import redis

from jobs import tasks, worker
from tests.inference.gateway.conftest import acme_key, gateway, globex_key, register, stub, support

__all__ = ["acme_key", "gateway", "globex_key", "register", "stub", "support"]  # fixtures

Work = Callable[[], threading.Thread]


@pytest.fixture
def work(transactional_db: None, valkey: redis.Redis) -> Iterator[Work]:
    """Runs the job whose turn it is, as Celery would, in a thread that is returned."""
    threads = []

    def work() -> threading.Thread:
        threads.append(thread := threading.Thread(target=tasks.run_next, args=["generation"]))
        thread.start()
        return thread

    yield work
    worker.give_up_all()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    worker.close_loop()
