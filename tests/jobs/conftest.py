"""The gateway with a stub engine, and a worker in this process."""

from collections.abc import Callable, Iterator

import httpx
import pytest
import redis

from jobs import tasks, worker
from personas.models import Persona
from tests.inference.gateway.conftest import Gateway, acme_key, gateway, globex_key, register, stub, support
from tests.inference.gateway.stub_engine import StubEngine

__all__ = ["acme_key", "gateway", "globex_key", "register", "stub", "support"]  # fixtures


class Working:
    """The worker of this process, at its work."""

    def join(self, timeout_s: float) -> None:
        """Wait until nothing is left to do. Raises TimeoutError."""
        worker.wait_until_idle(timeout_s)


Work = Callable[[], Working]


@pytest.fixture
def work(transactional_db: None, valkey: redis.Redis) -> Iterator[Work]:
    """Has the worker look for jobs, as a message from the queue would."""

    def work() -> Working:
        tasks.run_next("generation")
        return Working()

    yield work
    worker.close_loop()


@pytest.fixture
def program(gateway: Gateway, valkey: redis.Redis, acme_key: str, support: Persona, stub: StubEngine) -> httpx.Client:
    """acme's program."""
    return gateway.http(acme_key)
