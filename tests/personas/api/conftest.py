"""People and programs that ask the management API, and what acme owns."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from personas import adapters, services
from personas.models import Adapter, ApiKey, Persona, SteeringVector, Tenant
from tests.conftest import MakePersona, MakeVector


class Api:
    """Somebody who asks; `api.get("tenants/acme")` is below /api/v1/."""

    def __init__(self, *, user: User | None = None, key: str | None = None) -> None:
        self.client = Client()
        if user is not None:
            self.client.force_login(user)
        self.headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(self, method: str, path: str, body: Any = None, /, **headers: str) -> Any:
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        kind = said.pop("content-type", "application/json")
        return self.client.generic(
            method, f"/api/v1/{path}", content, content_type=kind, headers={**self.headers, **said}
        )

    def get(self, path: str, **headers: str) -> Any:
        return self.ask("GET", path, None, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.ask("POST", path, body, **headers)

    def put(self, path: str, body: Any, **headers: str) -> Any:
        return self.ask("PUT", path, body, **headers)

    def patch(self, path: str, body: Any, **headers: str) -> Any:
        return self.ask("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.ask("DELETE", path, None, **headers)


MakeKey = Callable[..., Api]


@pytest.fixture
def owner(acme: Tenant, alice: User) -> Api:
    return Api(user=alice)


@pytest.fixture
def editor(acme: Tenant, bob: User) -> Api:
    return Api(user=bob)


@pytest.fixture
def viewer(acme: Tenant, db: None) -> Api:
    victor = User.objects.create_user("victor")
    services.add_member(tenant=acme, user=victor, role="viewer")
    return Api(user=victor)


@pytest.fixture
def outsider(globex: Tenant, charlie: User) -> Api:
    """Owner of globex."""
    return Api(user=charlie)


@pytest.fixture
def staff(db: None) -> Api:
    """Runs the installation; a member of nothing."""
    return Api(user=User.objects.create_superuser("operator"))


@pytest.fixture
def nobody(db: None) -> Api:
    return Api()


@pytest.fixture
def with_key() -> MakeKey:
    """`with_key(acme, "read")` asks with a key of acme's of that scope."""

    def make(tenant: Tenant, *scopes: str) -> Api:
        return Api(key=services.issue_api_key(tenant=tenant, name=" ".join(scopes), scopes=scopes)[1])

    return make


@dataclass
class Things:
    """One of everything that acme owns."""

    persona: Persona
    vector: SteeringVector
    key: ApiKey
    adapter: Adapter


@pytest.fixture
def things(acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> Things:
    vector = make_vector(acme, "warm", layers=(10, 14))
    persona = make_persona(acme, "support", vector, alpha=1.5, system_prompt="You work for Acme.")
    key, _text = services.issue_api_key(tenant=acme, name="backend")
    return Things(persona=persona, vector=vector, key=key, adapter=_adapter(acme))


def _adapter(tenant: Tenant) -> Adapter:
    """A row, and two files that are good enough to be downloaded."""
    adapter = Adapter.objects.create(
        tenant=tenant,
        name="tone",
        base_model="SmolLM2-135M-Instruct",
        digest="ad" * 32,
        engine_id="sga-tone",
        rank=8,
        target_modules=["q_proj"],
        num_parameters=64,
        size_bytes=7,
    )
    adapters.store().scratch()  # which makes the folder above it
    folder = adapters.store().path_of(adapter.digest)
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / "adapter_model.safetensors").write_bytes(b"acme's")
    return adapter


def problem(answer: Any, status: int, *fields: str) -> dict[str, Any]:
    """The problem that `answer` is, which has to name exactly these fields."""
    assert answer.status_code == status, answer.content
    assert answer.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(answer.content)
    assert body["status"] == status
    assert {"type", "title", "status", "detail"} <= body.keys() <= {"type", "title", "status", "detail", "errors"}
    assert [error["field"] for error in body.get("errors", [])] == list(fields)
    return body
