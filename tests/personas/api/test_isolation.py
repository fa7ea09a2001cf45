"""Another tenant, with all its powers, learns nothing of acme: not that a thing is there, nor that it isn't.

Every route is asked, with every method that it has, for a thing of acme's and for one that nobody has; the answers have
to be equal to the byte once the name that was asked for is taken out. A new route fails until NAMES knows its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from personas.models import AuditEvent, Tenant
from tests.personas.api.conftest import Api, MakeKey, Things, problem

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# What nobody has, for each part that a route may name.
NOBODYS = {
    "tenant": "nosuch",
    "persona": "nosuch",
    "prefix": "nosuch00",
    "digest": "0" * 64,
    "adapter": "0" * 64,
    "user": "nosuch",
    "number": "77",
    "engine": "nosuch",
    "job": "job_nosuch",
}
# A body that each route takes, so that a refusal is about the thing and not about the body.
BODIES: dict[str, Any] = {
    "api-members": {"user": "charlie", "role": "viewer"},
    "api-member": {"role": "viewer"},
    "api-key": {"name": "mine now"},
    "api-key-rotate": {"grace_s": 0},
    "api-persona": {"name": "mine now"},
    "api-persona-roll-back": {"number": 1},
    "api-personas": {"slug": "support", "name": "Support"},
    "api-vector": {"name": "mine-now"},
    "api-adapter": {"name": "mine-now"},
    "api-keys": {"name": "mine"},
    "api-tenant": {"name": "mine now"},
}
# Routes without a tenant in them: what they may show is tested below.
OF_NO_TENANT = {"api-tenants", "api-engines", "api-engine", "api-openapi-yaml", "api-openapi-json"}


def routes(resolver: URLResolver | None = None, prefix: str = "") -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, path with its parts as `{part}`, and methods of every route below /api/v1."""
    for pattern in (resolver or get_resolver()).url_patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, path)
        elif isinstance(pattern, URLPattern) and path.startswith("api/v1/"):
            view = getattr(pattern.callback, "view_class", None)
            methods = tuple(method for method in METHODS if hasattr(view, method.lower()))
            yield pattern.name or path, re.sub(r"<\w+:(\w+)>", r"{\1}", path.removeprefix("api/v1/")), methods


ROUTES = sorted(routes())
OF_A_TENANT = [(name, path, method) for name, path, methods in ROUTES if "{tenant}" in path for method in methods]


def test_every_route_is_of_a_tenant_or_known_to_be_of_none() -> None:
    assert {name for name, path, _ in ROUTES if "{tenant}" not in path} == OF_NO_TENANT
    named = {part for _, path, _ in ROUTES for part in re.findall(r"{(\w+)}", path)}
    assert named <= NOBODYS.keys(), "say what of it nobody has"


def filled(path: str, parts: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda part: parts[part[1]], path)


def shown(answer: Any, parts: dict[str, str]) -> tuple[Any, ...]:
    """All of an answer, without the names that were asked for."""
    body = answer.content.decode()
    for part, name in parts.items():
        body = body if part == "number" else body.replace(name, "…")
    headers = {name: value for name, value in answer.headers.items() if name != "Content-Length"}
    return answer.status_code, headers, body


@pytest.fixture
def acmes(things: Things) -> dict[str, str]:
    return {
        "tenant": "acme",
        "persona": "support",
        "prefix": things.key.prefix,
        "digest": things.vector.digest,
        "adapter": things.adapter.digest,
        "user": "alice",
        "number": "1",
        "engine": "nosuch",
        "job": "job_nosuch",
    }


@pytest.mark.parametrize(("name", "path", "method"), OF_A_TENANT)
def test_what_is_acmes_is_answered_as_what_nobody_has(
    name: str,
    path: str,
    method: str,
    acmes: dict[str, str],
    globex: Tenant,
    outsider: Api,
    staff: Api,
    nobody: Api,
    with_key: MakeKey,
) -> None:
    body = BODIES.get(name)
    before = AuditEvent.objects.count()
    within = {part for part in re.findall(r"{(\w+)}", path) if part != "tenant"}
    for asker in (outsider, with_key(globex, "manage"), with_key(globex, "inference"), staff, nobody):
        count = AuditEvent.objects.count()
        asked = asker.ask(method, filled(path, acmes), body)
        missing = asker.ask(method, filled(path, NOBODYS), body)
        assert shown(asked, acmes) == shown(missing, NOBODYS)
        assert asked.status_code == (401 if asker is nobody else 404)
        assert AuditEvent.objects.count() == count
    assert AuditEvent.objects.count() == before + 2, "the keys that were issued, and nothing else"
    if within:
        # acme's things, looked for in one's own tenant
        for asker in (outsider, with_key(globex, "manage")):
            asked = asker.ask(method, filled(path, {**acmes, "tenant": "globex"}), body)
            missing = asker.ask(method, filled(path, {**NOBODYS, "tenant": "globex"}), body)
            assert shown(asked, acmes) == shown(missing, NOBODYS)
            assert asked.status_code == 404


WRITES = [(name, path, method) for name, path, method in OF_A_TENANT if method != "GET"]


@pytest.mark.parametrize(("name", "path", "method"), WRITES)
def test_who_may_only_look_changes_nothing(
    name: str, path: str, method: str, acmes: dict[str, str], acme: Tenant, viewer: Api, with_key: MakeKey
) -> None:
    for asker in (viewer, with_key(acme, "read"), with_key(acme, "inference")):
        before = AuditEvent.objects.count()
        problem(asker.ask(method, filled(path, acmes), BODIES.get(name)), 403)
        assert AuditEvent.objects.count() == before


def test_lists_show_only_ones_own(acmes: dict[str, str], globex: Tenant, outsider: Api, staff: Api) -> None:
    assert [one["slug"] for one in outsider.get("tenants").json()["results"]] == ["globex"]
    assert staff.get("tenants").json()["results"] == []
    for path in ("personas", "vectors", "adapters", "keys", "usage"):
        assert outsider.get(f"tenants/globex/{path}").json()["results"] == [], path
    assert [one["user"] for one in outsider.get("tenants/globex/members").json()["results"]] == ["charlie"]
    assert {one["target"] for one in outsider.get("tenants/globex/audit").json()["results"]} == {"globex"}


def test_filters_find_only_ones_own(acmes: dict[str, str], globex: Tenant, outsider: Api, things: Things) -> None:
    for query in (
        f"personas?vector={things.vector.digest}",
        "personas?search=support",
        "vectors?name=warm",
        "adapters?name=tone",
        "audit?actor=alice",
        "audit?target=acme/support",
    ):
        assert outsider.get(f"tenants/globex/{query}").json()["results"] == [], query


def test_taken_names_are_ones_own(things: Things, globex: Tenant, outsider: Api) -> None:
    assert outsider.post("tenants/globex/personas", {"slug": "support", "name": "Ours"}).status_code == 201


def test_anothers_vector_is_refused_in_the_words_for_no_vector(things: Things, globex: Tenant, outsider: Api) -> None:
    def refusal(digest: str) -> str:
        body = {"slug": "a", "name": "A", "draft": {"blend": [{"vector": digest}]}}
        return str(problem(outsider.post("tenants/globex/personas", body), 400, "draft.blend[0].vector"))

    assert refusal(things.vector.digest).replace(things.vector.digest, "…") == refusal("0" * 64).replace("0" * 64, "…")


def test_only_staff_see_engines_in_full(outsider: Api, viewer: Api, staff: Api, nobody: Api) -> None:
    made = staff.post("engines", {"name": "gpu-1", "url": "http://10.0.0.5:8000", "api_key": "secret"})
    assert made.status_code == 201
    assert "secret" not in made.content.decode()
    for member in (outsider, viewer):
        assert member.get("engines").json()["results"] == [{"name": "gpu-1", "status": "unknown", "base_model": ""}]
        for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
            refused = member.ask(method, "engines/gpu-1", body)
            problem(refused, 403)
            assert refused.content == member.ask(method, "engines/nosuch", body).content
        problem(member.post("engines", {"name": "gpu-2", "url": "http://10.0.0.6:8000"}), 403)
        problem(member.post("tenants", {"slug": "new", "name": "New"}), 403)
    problem(nobody.get("engines"), 401)
    assert staff.get("engines").json()["results"][0]["url"] == "http://10.0.0.5:8000"
    assert staff.patch("engines/gpu-1", {"enabled": False}).json()["enabled"] is False
    assert staff.delete("engines/gpu-1").status_code == 204
