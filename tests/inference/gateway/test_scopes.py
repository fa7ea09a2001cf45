"""What a key may do: its scopes, the personas it is for, and whether its tenant may ask the base model."""

import json
from typing import Any

import openai
import pytest

from personas import services
from personas.models import Persona, Tenant
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import MODEL, StubEngine

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("scopes", [["read"], ["manage"], ["read", "manage"]])
def test_a_key_without_the_inference_scope_is_a_403(
    gateway: Gateway, stub: StubEngine, acme: Tenant, support: Persona, scopes: list[str]
) -> None:
    key = services.issue_api_key(tenant=acme, name="other", scopes=scopes)[1]
    with pytest.raises(openai.PermissionDeniedError) as refusal:
        gateway.openai(key).chat.completions.create(model="support", messages=HELLO)
    assert refusal.value.code == "insufficient_scope"
    assert gateway.http(key).get("/v1/models").status_code == 403
    assert stub.requests == []


class TestAKeyForSomePersonas:
    @pytest.fixture
    def key(self, acme: Tenant, support: Persona, make_persona: MakePersona) -> str:
        make_persona(acme, "sales", system_prompt="Sell.")
        return services.issue_api_key(tenant=acme, name="support only", personas=["support"])[1]

    def test_asks_those(self, gateway: Gateway, stub: StubEngine, key: str) -> None:
        for model in ("support", "acme/support", "support@1"):
            assert gateway.openai(key).chat.completions.create(model=model, messages=HELLO).model == model

    @pytest.mark.parametrize("model", ["sales", "acme/sales", "sales@1", MODEL])
    def test_gets_for_others_what_it_gets_for_none(
        self, gateway: Gateway, stub: StubEngine, key: str, model: str
    ) -> None:
        def answers(name: str) -> list[tuple[int, object]]:
            client = gateway.http(key)
            got = [
                client.post("/v1/chat/completions", json={"model": name, "messages": HELLO}),
                client.get(f"/v1/models/{name}"),
            ]
            return [(answer.status_code, json.loads(answer.text.replace(name, "…"))) for answer in got]

        assert answers(model) == answers("nobody")
        assert answers(model)[0][0] == 404
        assert stub.requests == []

    def test_sees_those_listed(self, gateway: Gateway, stub: StubEngine, key: str) -> None:
        assert [model.id for model in gateway.openai(key).models.list()] == ["acme/support"]


class TestATenantThatMayNotAskTheBaseModel:
    def test_gets_a_404_for_it_and_does_not_see_it(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, globex_key: str, support: Persona
    ) -> None:
        services.update_tenant(tenant=acme, allows_base_model=False)
        client = gateway.openai(acme_key)
        eventually(lambda: [model.id for model in client.models.list()] == ["acme/support"])
        with pytest.raises(openai.NotFoundError) as refusal:
            client.chat.completions.create(model=MODEL, messages=HELLO)
        assert refusal.value.code == "model_not_found"
        assert stub.requests == []
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(MODEL)
        assert client.chat.completions.create(model="support", messages=HELLO).model == "support"
        assert gateway.openai(globex_key).chat.completions.create(model=MODEL, messages=HELLO).model == MODEL


def test_a_locked_field_is_a_400_that_names_it(
    gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, make_persona: MakePersona
) -> None:
    make_persona(acme, "strict", sampling={"temperature": 0.1}, locked=["temperature", "steer_skill"])
    client = gateway.openai(acme_key)
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model="strict", messages=HELLO, temperature=1)
    assert (refusal.value.param, refusal.value.code) == ("temperature", "locked_parameter")
    assert "owner has locked" in refusal.value.message
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="strict", messages=HELLO, extra_body={"steer_skill": "x"})
    assert stub.requests == []
    client.chat.completions.create(model="strict", messages=HELLO, top_p=0.5)
    assert (stub.last["temperature"], stub.last["top_p"]) == (0.1, 0.5)
