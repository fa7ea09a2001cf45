"""Who gets in: keys work the moment they are issued, and stop within a second of being revoked."""

import json
import time
from datetime import timedelta

import httpx
import openai
import pytest
import redis
from django.db import transaction
from django.utils import timezone

from personas import services
from personas.models import ApiKey, Persona, Tenant
from tests.inference.gateway.conftest import Gateway, eventually, serving
from tests.inference.gateway.stub_engine import MODEL, StubEngine
from tests.waiting import within


def status(gateway: Gateway, key: str | None) -> int:
    return gateway.http(key).get("/v1/models").status_code


def test_a_new_key_works_at_once(gateway: Gateway, acme: Tenant) -> None:
    for name in ("first", "second", "third"):
        key = services.issue_api_key(tenant=acme, name=name)[1]
        assert status(gateway, key) == 200


def test_a_new_key_works_at_once_even_when_nothing_was_announced(gateway: Gateway, acme: Tenant, acme_key: str) -> None:
    assert status(gateway, acme_key) == 200
    # As if the other process had died between its commit and its announcement.
    with transaction.atomic():
        key, text = services.issue_api_key(tenant=acme, name="another")
        transaction.set_rollback(True)
    assert status(gateway, text) == 401
    ApiKey.objects.bulk_create([key])
    assert status(gateway, text) == 200


def test_a_revoked_key_stops_within_a_second_in_every_process(gateway: Gateway, acme: Tenant) -> None:
    with serving() as another:

        def revoke() -> float:
            key, text = services.issue_api_key(tenant=acme, name="brief")
            assert status(gateway, text) == status(another, text) == 200
            began_s = time.monotonic()
            services.revoke_api_key(key=key)
            eventually(lambda: status(gateway, text) == 401)
            eventually(lambda: status(another, text) == 401)
            return time.monotonic() - began_s

        within(1.0, revoke)


def test_an_expired_key_stops_on_time_without_anybody_saying_so(gateway: Gateway, acme: Tenant) -> None:
    lifetime_s = 1.0
    while True:
        expires_at = timezone.now() + timedelta(seconds=lifetime_s)
        key = services.issue_api_key(tenant=acme, name=f"for {lifetime_s:g} s", expires_at=expires_at)[1]
        if status(gateway, key) == 200:
            break
        assert timezone.now() >= expires_at, "refused while it was valid"
        lifetime_s *= 2  # a slow machine looked at it too late
    eventually(lambda: status(gateway, key) == 401)
    assert timezone.now() >= expires_at


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda key: None, id="none"),
        pytest.param(lambda key: "", id="empty"),
        pytest.param(lambda key: "nonsense", id="no key"),
        pytest.param(lambda key: key[:-1] + ("a" if key[-1] != "a" else "b"), id="last letter changed"),
        pytest.param(lambda key: key[:12] + "x" * 43, id="another's prefix"),
        pytest.param(lambda key: key + "a", id="longer"),
        pytest.param(lambda key: "sg_00000000_" + key[12:], id="unknown prefix"),
    ],
)
def test_anything_but_the_whole_key_is_refused_in_openais_words(gateway: Gateway, acme_key: str, forge) -> None:  # type: ignore[no-untyped-def]
    answer = gateway.http(forge(acme_key)).get("/v1/models")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "sg_" not in answer.text.replace("sg_…", "").replace("sg_\\u2026", "")


def test_the_openai_client_knows_it_as_an_authentication_error(gateway: Gateway) -> None:
    with pytest.raises(openai.AuthenticationError):
        gateway.openai("sg_00000000_" + "x" * 43).models.list()


def test_keys_go_on_working_while_valkey_is_away(
    gateway: Gateway, valkey: redis.Redis, acme: Tenant, acme_key: str
) -> None:
    assert status(gateway, acme_key) == 200
    # Nobody hears of changes any more, as on a machine that has lost its Valkey.
    valkey.client_kill_filter(_type="pubsub")
    assert status(gateway, acme_key) == 200
    services.revoke_api_key(key=ApiKey.objects.get())
    eventually(lambda: status(gateway, acme_key) == 401)


class TestAnotherTenant:
    def test_gets_for_a_persona_of_acmes_what_it_gets_for_one_that_nobody_has(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, globex_key: str, support: Persona
    ) -> None:
        charlie = gateway.http(globex_key)

        def asked(name: str) -> list[tuple[int, object]]:
            answers: list[httpx.Response] = [
                charlie.post("/v1/chat/completions", json={"model": name, "messages": [{"role": "user"}]}),
                charlie.post("/v1/completions", json={"model": name, "prompt": "Hello"}),
                charlie.get(f"/v1/models/{name}"),
            ]
            return [(answer.status_code, json.loads(answer.text.replace(name, "…"))) for answer in answers]

        for existing, invented in (
            ("acme/support", "acme/nobody"),
            ("acme/support@1", "acme/nobody@1"),
            ("support", "nobody"),
            ("acme/support", "nowhere/support"),
        ):
            assert asked(existing) == asked(invented)
            assert {status for status, _ in asked(existing)} == {404}
        assert stub.requests == []

    def test_does_not_see_acmes_personas_listed(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, globex_key: str, support: Persona
    ) -> None:
        def listed(key: str) -> list[str]:
            return [model.id for model in gateway.openai(key).models.list()]

        eventually(lambda: listed(acme_key) == ["acme/support", MODEL])
        assert listed(globex_key) == [MODEL]

    def test_can_not_ask_for_acmes_skills(
        self, gateway: Gateway, stub: StubEngine, globex_key: str, support: Persona
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            gateway.openai(globex_key).chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], extra_body={"steer_skill": "warm"}
            )
        assert refusal.value.param == "steer_skill"
        assert stub.requests == []


def test_a_model_can_be_looked_up_by_any_of_its_names(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    models = gateway.openai(acme_key).models
    for name in ("acme/support", "support", "support@1", MODEL):
        assert models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError):
        models.retrieve("support@2")
