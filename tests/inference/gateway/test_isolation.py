"""Every route of the gateway, asked by one tenant for what is another's: the answer is the one for what nobody has.

A route that an app registers has to be covered here, or be named among those that take no names, for the test to pass.
"""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from inference.gateway.routes import registered_routes
from personas.models import Persona, Tenant
from tests.conftest import MakeVector
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import MODEL, StubEngine

Ask = Callable[[httpx.Client, str], list[httpx.Response]]
Route = tuple[str, str]

HELLO = [{"role": "user", "content": "Hello"}]

# What acme has, and beside it the like of what nobody has.
MODELS = (
    ("acme/support", "acme/nothing"),
    ("acme/support@1", "acme/nothing@1"),
    ("acme/support@2", "acme/nothing@2"),
    ("support", "nothing"),
    ("support@1", "nothing@1"),
    ("acme/support", "nowhere/support"),
)
SKILL = ("warm", "cold")


def by_model(path: str, **body: Any) -> Ask:
    """Asks for the name as a model, streamed and not, and with a skill, which must not be looked at first."""

    def ask(client: httpx.Client, name: str) -> list[httpx.Response]:
        variants: list[dict[str, Any]] = [{}, {"stream": True}, {"steer_skill": "warm"}]
        return [client.post(path, json={"model": name, **body, **more}) for more in variants]

    return ask


def by_skill(path: str, **body: Any) -> Ask:
    """Asks for the name as a skill of the base model's, alone and in a list."""

    def ask(client: httpx.Client, name: str) -> list[httpx.Response]:
        asked: list[dict[str, Any]] = [
            {"steer_skill": name},
            {"steer_skill": name, "stream": True},
            {"steer_skill": [name]},
        ]
        return [client.post(path, json={"model": MODEL, **body, **more}) for more in asked]

    return ask


_BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/embeddings": {"input": "Hello"},
    "/v1/jobs": {"messages": HELLO},
}

ASKED_BY_MODEL: dict[Route, Ask] = {
    **{("POST", path): by_model(path, **body) for path, body in _BODIES.items()},
    ("GET", "/v1/models/{model:path}"): lambda client, name: [client.get(f"/v1/models/{name}")],
}
ASKED_BY_SKILL: dict[Route, Ask] = {("POST", path): by_skill(path, **body) for path, body in _BODIES.items()}
# These take no names: what they list is tested in its own way.
NAMELESS: set[Route] = {("GET", "/v1/models")}
# Routes of other apps, tested where they are made; each of those files asks as charlie for what is alice's.
ELSEWHERE: dict[Route, str] = {
    ("GET", "/v1/jobs"): "tests/jobs/test_jobs.py",
    ("GET", "/v1/jobs/{id}"): "tests/jobs/test_jobs.py",
    ("DELETE", "/v1/jobs/{id}"): "tests/jobs/test_jobs.py",
    ("GET", "/events/{id}"): "tests/jobs/test_jobs.py",
    ("POST", "/v1/files"): "tests/jobs/test_files.py",
    ("GET", "/v1/files"): "tests/jobs/test_files.py",
    ("GET", "/v1/files/{id}"): "tests/jobs/test_files.py",
    ("DELETE", "/v1/files/{id}"): "tests/jobs/test_files.py",
    ("GET", "/v1/files/{id}/content"): "tests/jobs/test_files.py",
    ("POST", "/v1/batches"): "tests/jobs/test_batches.py",
    ("GET", "/v1/batches"): "tests/jobs/test_batches.py",
    ("GET", "/v1/batches/{id}"): "tests/jobs/test_batches.py",
    ("POST", "/v1/batches/{id}/cancel"): "tests/jobs/test_batches.py",
}


def gateway_routes() -> set[Route]:
    import config.asgi  # noqa: F401  (with it, all routes are registered)

    return {(route.method, route.pattern) for route in registered_routes()}


def test_every_route_is_covered() -> None:
    assert gateway_routes() == ASKED_BY_MODEL.keys() | NAMELESS | ELSEWHERE.keys()


def comparable(answer: httpx.Response, name: str) -> tuple[int, dict[str, str], bytes]:
    """All of an answer, except for the name that was asked for and what differs between any two answers."""
    headers = {key: value for key, value in answer.headers.items() if key not in ("x-request-id", "date")}
    length = int(headers.pop("content-length")) - answer.content.count(name.encode()) * len(name)
    body = answer.content.replace(name.encode(), b"<name>")
    return answer.status_code, {**headers, "content-length": str(length)}, body


@pytest.mark.parametrize("route", sorted(ASKED_BY_MODEL), ids=" ".join)
@pytest.mark.parametrize("names", MODELS, ids=" ".join)
def test_acmes_persona_is_to_globex_what_nobodys_is(
    gateway: Gateway, stub: StubEngine, globex_key: str, support: Persona, route: Route, names: tuple[str, str]
) -> None:
    client = gateway.http(globex_key)
    theirs, nobodys = ([comparable(answer, name) for answer in ASKED_BY_MODEL[route](client, name)] for name in names)
    assert theirs == nobodys
    assert {status for status, _, _ in theirs} == {404}
    assert all(b"<name>" in body for _, _, body in theirs)
    assert stub.requests == []


@pytest.mark.parametrize("route", sorted(ASKED_BY_SKILL), ids=" ".join)
def test_acmes_skill_is_to_globex_what_nobodys_is(
    gateway: Gateway, stub: StubEngine, globex_key: str, support: Persona, route: Route
) -> None:
    client = gateway.http(globex_key)
    theirs, nobodys = ([comparable(answer, name) for answer in ASKED_BY_SKILL[route](client, name)] for name in SKILL)
    assert theirs == nobodys
    assert {status for status, _, _ in theirs} == {400}
    assert stub.requests == []


def test_a_shared_skill_and_an_own_one_of_the_same_name_are_not_acmes(
    gateway: Gateway, stub: StubEngine, globex: Tenant, globex_key: str, support: Persona, make_vector: MakeVector
) -> None:
    own = make_vector(globex, "warm", seed=5)
    gateway.http(globex_key).post(
        "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "steer_skill": "warm"}
    )
    assert [component["vector"] for component in stub.steering["blend"]] == [own.digest]


def test_nothing_of_acmes_is_in_anything_that_globex_can_get_without_a_name(
    gateway: Gateway, stub: StubEngine, globex_key: str, support: Persona
) -> None:
    client = gateway.http(globex_key)
    for method, pattern in gateway_routes():
        if method == "GET":
            answer = client.get(re.sub(r"\{[^}]*\}", "x", pattern))
            assert "acme" not in answer.text and "support" not in answer.text
