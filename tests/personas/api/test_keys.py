"""Keys and idempotency over the API: a text is shown once, and asking twice does once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from personas import services
from personas.api_keys import find_api_key
from personas.models import ApiKey, AuditEvent, IdempotentAnswer, Persona, Tenant
from tests.personas.api.conftest import Api, MakeKey, Things, problem

KEYS = "tenants/acme/keys"
PERSONAS = "tenants/acme/personas"


def test_an_owner_issues_changes_rotates_and_revokes_one(owner: Api, things: Things) -> None:
    issued = owner.post(KEYS, {"name": "app", "scopes": ["read", "inference"], "personas": ["support"]})
    assert issued.status_code == 201
    text, prefix = issued.json()["key"], issued.json()["prefix"]
    found = find_api_key(text)
    assert found is not None and found.scopes == ["inference", "read"]

    changed = owner.patch(f"{KEYS}/{prefix}", {"name": "app 2", "limits": {"requests_per_minute": 5}})
    assert changed.json()["limits"]["requests_per_minute"] == 5
    assert changed.json()["limits"]["tokens_per_day"] is None
    assert "key" not in changed.json()

    rotated = owner.post(f"{KEYS}/{prefix}/rotate", {"grace_s": 3600})
    assert rotated.status_code == 201
    assert find_api_key(text) is not None, "the grace"
    assert find_api_key(rotated.json()["key"]) is not None
    for _ in range(2):
        assert owner.post(f"{KEYS}/{prefix}/revoke").json()["revoked_at"]
    assert find_api_key(text) is None

    listed = owner.get(KEYS).json()["results"]
    assert len(listed) == 3
    assert text not in str(listed) and things.key.digest not in str(listed)
    assert {one["prefix"] for one in owner.get(f"{KEYS}?valid=true").json()["results"]} == {
        things.key.prefix,
        rotated.json()["prefix"],
    }
    assert [one["prefix"] for one in owner.get(f"{KEYS}?scope=read&valid=false").json()["results"]] == [prefix]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"name": "a", "scopes": ["everything"]}, ["scopes[0]"]),
        ({"name": "a", "scopes": []}, ["scopes"]),
        ({"name": "a", "personas": ["nosuch"]}, ["personas"]),
        ({"name": "a", "expires_at": "2020-01-01T00:00:00Z"}, ["expires_at"]),
        ({"name": "a", "expires_at": "soon"}, ["expires_at"]),
        ({"name": "a", "limits": {"requests_per_minute": 0}}, ["limits.requests_per_minute"]),
        ({"name": "a", "limits": {"requests_per_minute": 2**63}}, ["limits.requests_per_minute"]),
        ({"name": "a", "limits": {"requests_per_minute": 1.5}}, ["limits.requests_per_minute"]),
        ({"name": "a", "limits": {"coffee": 1}}, ["limits.coffee"]),
        ({}, ["name"]),
    ],
)
def test_a_wrong_field_is_named(owner: Api, body: object, fields: list[str]) -> None:
    problem(owner.post(KEYS, body), 400, *fields)


def test_only_an_owner_sees_keys(editor: Api, viewer: Api, with_key: MakeKey, acme: Tenant) -> None:
    for asker in (editor, viewer, with_key(acme, "read")):
        problem(asker.get(KEYS), 403)
        problem(asker.post(KEYS, {"name": "mine"}), 403)
    assert with_key(acme, "manage").get(KEYS).status_code == 200


def test_a_key_that_has_ended_opens_nothing(acme: Tenant) -> None:
    key, text = services.issue_api_key(tenant=acme, name="a", scopes=["read"])
    asker = Api(key=text)
    assert asker.get("tenants").json()["results"][0]["role"] == "viewer"
    services.revoke_api_key(key=key)
    refused = asker.get("tenants")
    assert problem(refused, 401)
    assert refused.headers["WWW-Authenticate"].startswith("Bearer")
    for wrong in ("sg_nosuch00_" + "x" * 43, "nonsense", "\xff"):
        assert Api(key=wrong).get("tenants").content == refused.content


def test_a_session_needs_its_csrf_token(alice: User, acme: Tenant) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    answer = browser.post("/api/v1/tenants/acme/personas", {"slug": "a", "name": "A"}, content_type="application/json")
    problem(answer, 403)
    assert not Persona.objects.exists()


def test_asking_twice_does_once(editor: Api, acme: Tenant) -> None:
    body = {"slug": "sales", "name": "Sales"}
    first = editor.post(PERSONAS, body, idempotency_key="a1")
    again = editor.post(PERSONAS, body, idempotency_key="a1")
    assert (first.status_code, first.content, first.headers["ETag"]) == (201, again.content, again.headers["ETag"])
    assert again.status_code == 201
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert AuditEvent.objects.filter(action="persona.created").count() == 1
    problem(editor.post(PERSONAS, {"slug": "other", "name": "Sales"}, idempotency_key="a1"), 422)
    problem(editor.post("tenants/acme/personas/sales/publish", idempotency_key="a1"), 422)
    refused = editor.post(PERSONAS, body, idempotency_key="a2")
    problem(refused, 409, "slug")
    services.delete_persona(persona=Persona.objects.get())
    replayed = editor.post(PERSONAS, body, idempotency_key="a2")
    assert (replayed.content, replayed.headers["Content-Type"]) == (refused.content, "application/problem+json")
    assert editor.post(PERSONAS, body, idempotency_key="a3").status_code == 201


def test_another_callers_key_is_another_key(editor: Api, owner: Api, with_key: MakeKey, acme: Tenant) -> None:
    made = [
        asker.post(PERSONAS, {"slug": f"p{number}", "name": "P"}, idempotency_key="same").status_code
        for number, asker in enumerate((editor, owner, with_key(acme, "manage"), with_key(acme, "manage")))
    ]
    assert made == [201] * 4


def test_who_may_not_any_more_gets_no_replay(editor: Api, bob: User, acme: Tenant) -> None:
    body = {"slug": "sales", "name": "Sales"}
    editor.post(PERSONAS, body, idempotency_key="a1")
    services.remove_member(tenant=acme, user=bob)
    problem(editor.post(PERSONAS, body, idempotency_key="a1"), 404)


def test_a_keys_text_is_not_kept_for_a_replay(owner: Api, acme: Tenant) -> None:
    issued = owner.post(KEYS, {"name": "app"}, idempotency_key="k1")
    assert issued.status_code == 201
    assert issued.json()["key"] not in str(IdempotentAnswer.objects.values())
    problem(owner.post(KEYS, {"name": "app"}, idempotency_key="k1"), 409)
    assert ApiKey.objects.count() == 1


def test_a_request_that_is_under_way_is_not_made_again(editor: Api, bob: User) -> None:
    body = {"slug": "sales", "name": "Sales"}
    editor.post(PERSONAS, body, idempotency_key="a1")
    IdempotentAnswer.objects.update(status=None)
    answer = editor.post(PERSONAS, body, idempotency_key="a1")
    problem(answer, 409)
    assert answer.headers["Retry-After"] == "1"
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(minutes=3))
    problem(editor.post(PERSONAS, body, idempotency_key="a1"), 409, "slug")  # the lease is over: made anew


def test_an_answer_is_kept_for_a_day(editor: Api) -> None:
    body = {"slug": "sales", "name": "Sales"}
    editor.post(PERSONAS, body, idempotency_key="a1")
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=23))
    assert editor.post(PERSONAS, body, idempotency_key="a1").status_code == 201
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    problem(editor.post(PERSONAS, body, idempotency_key="a1"), 409, "slug")


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "with space", "\xe9"])
def test_an_idempotency_key_that_is_none_is_refused(editor: Api, key: str) -> None:
    problem(editor.post(PERSONAS, {"slug": "a", "name": "A"}, idempotency_key=key), 400)


def test_two_at_once_make_one(editor: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one arrives while the first is in its view."""
    inner: list[int] = []
    create = services.create_persona

    def slow(**said: object) -> Persona:
        if not inner:
            inner.append(0)
            inner[0] = editor.post(PERSONAS, {"slug": "sales", "name": "Sales"}, idempotency_key="a1").status_code
        return create(**said)  # type: ignore[arg-type]

    monkeypatch.setattr(services, "create_persona", slow)
    assert editor.post(PERSONAS, {"slug": "sales", "name": "Sales"}, idempotency_key="a1").status_code == 201
    assert inner == [409]


def test_members_come_go_and_one_owner_stays(owner: Api, acme: Tenant, charlie: User) -> None:
    path = "tenants/acme/members"
    assert owner.post(path, {"user": "charlie", "role": "viewer"}).status_code == 201
    problem(owner.post(path, {"user": "charlie", "role": "owner"}), 409, "user")
    problem(owner.post(path, {"user": "nosuch", "role": "owner"}), 400, "user")
    assert owner.patch(f"{path}/charlie", {"role": "editor"}).json() == {"user": "charlie", "role": "editor"}
    assert [one["user"] for one in owner.get(f"{path}?role=editor").json()["results"]] == ["bob", "charlie"]
    assert owner.delete(f"{path}/charlie").status_code == 204
    problem(owner.delete(f"{path}/alice"), 409, "role")
    problem(owner.patch(f"{path}/alice", {"role": "viewer"}), 409, "role")


def test_a_tenant_is_made_by_staff_and_changed_by_its_owner(staff: Api, owner: Api, editor: Api, alice: User) -> None:
    made = staff.post("tenants", {"slug": "initech", "name": "Initech", "owner": "alice"})
    assert made.status_code == 201
    problem(staff.post("tenants", {"slug": "initech", "name": "Again"}), 409, "slug")
    problem(staff.get("tenants/initech"), 404)
    assert [one["role"] for one in owner.get("tenants").json()["results"]] == ["owner", "owner"]
    changed = owner.patch("tenants/initech", {"logs_prompts": True, "limits": {"tokens_per_day": 10}})
    assert changed.json()["logs_prompts"] and changed.json()["limits"]["tokens_per_day"] == 10
    problem(editor.patch("tenants/acme", {"name": "Mine"}), 403)
    problem(owner.patch("tenants/acme", {}), 400, "body")
    problem(owner.patch("tenants/acme", {"slug": "other"}), 400, "slug")


def test_the_audit_log_is_filtered(owner: Api, editor: Api, things: Things) -> None:
    editor.patch("tenants/acme/personas/support", {"name": "S"})
    path = "tenants/acme/audit"
    (event,) = owner.get(f"{path}?action=persona.updated").json()["results"]
    assert (event["actor"], event["target"]) == ("bob", "acme/support")
    assert owner.get(f"{path}?actor=bob").json()["results"] == [event]
    assert owner.get(f"{path}?since=2100-01-01T00:00:00Z").json()["results"] == []
    assert owner.get(f"{path}?until=2000-01-01T00:00:00Z").json()["results"] == []
    problem(owner.get(f"{path}?since=yesterday"), 400, "since")
    problem(editor.get(path), 403)
