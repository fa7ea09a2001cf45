"""No shared cache keeps an answer, and no log line holds a key, a query or a body."""

from __future__ import annotations

import logging

import pytest

from personas import services
from personas.models import Tenant
from tests.personas.api.conftest import Api, Things, problem


def test_no_shared_cache_keeps_an_answer(owner: Api, nobody: Api, things: Things) -> None:
    persona = "tenants/acme/personas/support"
    etag = owner.get(persona).headers["ETag"]
    for answer in (
        owner.get(persona),
        owner.get(persona, if_none_match=etag),
        owner.get(f"tenants/acme/vectors/{things.vector.digest}/file"),
        owner.get(f"{persona}/export"),
        owner.post("tenants/acme/keys", {"name": "app"}),
        owner.get("tenants/nosuch"),
        nobody.get(persona),
    ):
        assert answer.headers["Cache-Control"] == "private, no-store"


def test_no_log_line_holds_a_secret(acme: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    _key, text = services.issue_api_key(tenant=acme, name="a", scopes=["manage"])
    asker = Api(key=text)
    with caplog.at_level(logging.DEBUG):
        issued = asker.post("tenants/acme/keys", {"name": "issued"}, idempotency_key="idem-1").json()["key"]
        asker.get("tenants/acme/personas?search=needle")
        problem(asker.post("tenants/acme/personas", {"slug": "BODY-NEEDLE", "name": "A"}), 400, "slug")
        problem(Api(key=f"{text}x").get("tenants"), 401)
    logged = "\n".join(str(record.msg) for record in caplog.records if not record.name.startswith("django.db"))
    assert "/api/v1/tenants/acme/keys" in logged
    for secret in (text, issued, "needle", "BODY-NEEDLE", "idem-1"):
        assert secret not in logged
