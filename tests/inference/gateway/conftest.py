"""The whole ASGI application under a real server (tests/server.py), and an engine behind it."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inference import services as inference_services
from inference.models import Engine
from inference.services import Observation
from personas import services
from personas.models import Persona, Tenant
from tests.conftest import BASE_MODEL, MakePersona, MakeVector
from tests.inference.gateway.stub_engine import KEY, StubEngine, running_stub
from tests.server import Gateway, Server, serving
from tests.waiting import PATIENCE_S, eventually

__all__ = ["Gateway", "eventually", "serving"]

RegisterEngine = Callable[..., Engine]


@pytest.fixture
def gateway(transactional_db: None, server: Server) -> Iterator[Gateway]:
    with server.serving() as gateway:
        yield gateway


def leave_unanswered(gateway: Gateway, key: str, stub: StubEngine, body: dict[str, Any]) -> None:
    """Asks, and hangs up once the engine has the request and before it has answered."""
    asked = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    stub.arrived.clear()
    stub.aborted.clear()
    host, _, port = gateway.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{head}Content-Length: {len(asked)}\r\n\r\n".encode() + asked)
        assert stub.arrived.wait(PATIENCE_S)
        assert not stub.aborted.is_set()


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
