"""The whole ASGI application under a real server, and an engine behind it."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
import uvicorn

from inference import services as inference_services
from inference.models import Engine
from inference.services import Observation
from personas import services
from personas.models import Persona, Tenant
from tests.conftest import BASE_MODEL, MakePersona, MakeVector
from tests.inference.gateway.stub_engine import KEY, StubEngine, running_stub

RegisterEngine = Callable[..., Engine]


class Gateway:
    """Where it listens, and clients for it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def openai(self, key: str) -> openai.OpenAI:
        """The `openai` client as people have it; only its retries are off, so that errors show."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def http(self, key: str | None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)


def eventually(claim: Callable[[], bool], within_s: float = 1.0) -> None:
    """Fails unless `claim` comes true in time: a second is what changes may take to reach every process."""
    deadline_s = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline_s, "not within the time"
        time.sleep(0.01)


@contextmanager
def serving() -> Iterator[Gateway]:
    """config.asgi under uvicorn on a free port, in a thread."""
    from config.asgi import application

    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, log_level="warning", access_log=False, timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ready = threading.Event()
    while not server.started:
        assert thread.is_alive()
        ready.wait(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Gateway(f"http://127.0.0.1:{port}")
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture
def gateway(transactional_db: None) -> Iterator[Gateway]:
    with serving() as gateway:
        yield gateway


@pytest.fixture
def register(transactional_db: None) -> RegisterEngine:
    """Registers an engine as the reconciler would leave it: looked at, and ready."""

    def register(
        url: str, *, name: str = "stub", key: str = KEY, status: str = "ready", model: str = BASE_MODEL
    ) -> Engine:
        engine = inference_services.register_engine(name=name, url=url, api_key=key)
        seen = Observation(status=Engine.Status(status), answered=True, base_model=model)
        inference_services.record_observation(engine=engine, observation=seen)
        return engine

    return register


@pytest.fixture
def stub(register: RegisterEngine) -> Iterator[StubEngine]:
    """A registered engine that does as it is told."""
    with running_stub() as stub:
        register(stub.url)
        yield stub


@pytest.fixture
def acme_key(transactional_db: None, acme: Tenant) -> str:
    return services.issue_api_key(tenant=acme, name="alice's app")[1]


@pytest.fixture
def globex_key(transactional_db: None, globex: Tenant) -> str:
    return services.issue_api_key(tenant=globex, name="charlie's app")[1]


@pytest.fixture
def support(transactional_db: None, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> Persona:
    """acme/support: steered, with a system prompt and sampling defaults."""
    return make_persona(
        acme,
        "support",
        make_vector(acme, "warm"),
        alpha=1.5,
        system_prompt="You work for Acme.",
        sampling={"temperature": 0.2},
    )
