"""Chat completions through the gateway: whose persona answers, what the engine gets, what the client sees."""

from typing import Any

import pytest

from personas import services
from personas.models import Persona, Tenant
from tests.conftest import MakePersona, MakeVector
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import MODEL, USAGE, StubEngine

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def test_a_persona_answers_under_its_own_name(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    answer = gateway.openai(acme_key).chat.completions.create(model="acme/support", messages=HELLO)

    assert answer.choices[0].message.content == "Hello!"
    assert answer.model == "acme/support"
    assert answer.usage and answer.usage.total_tokens == USAGE["total_tokens"]
    (component,) = support.draft["blend"]
    assert stub.steering == {
        "blend": [{"vector": component["vector"], "alpha": 1.5, "positions": "all"}],
    }
    assert stub.last["model"] == MODEL
    assert stub.last["temperature"] == 0.2
    assert stub.last["messages"][0] == {"role": "system", "content": "You work for Acme."}


@pytest.mark.parametrize("model", ["support", "acme/support", "acme/support@1"])
def test_a_persona_goes_by_several_names_and_keeps_the_one_that_was_used(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, model: str
) -> None:
    chunks = list(gateway.openai(acme_key).chat.completions.create(model=model, messages=HELLO, stream=True))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"
    assert {chunk.model for chunk in chunks} == {model}
    assert stub.steering["blend"]


def test_the_base_model_answers_unsteered(gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
    answer = gateway.openai(acme_key).chat.completions.create(model=MODEL, messages=HELLO)

    assert answer.model == MODEL
    assert "vllm_xargs" not in stub.last


def test_an_old_revision_answers_as_it_was(gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
    services.save_draft(persona=support, definition={"system_prompt": "You are new."})
    services.publish_persona(persona=support)

    def asked_of(model: str) -> dict[str, Any]:
        gateway.openai(acme_key).chat.completions.create(model=model, messages=HELLO)
        return stub.last

    assert asked_of("support@1")["messages"][0]["content"] == "You work for Acme."
    assert stub.steering["blend"]

    eventually(lambda: "vllm_xargs" not in asked_of("support"))
    assert stub.last["messages"][0]["content"] == "You are new."


def test_headers_say_what_answered(gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
    for stream in (False, True):
        answer = gateway.http(acme_key).post(
            "/v1/chat/completions", json={"model": "support", "messages": HELLO, "stream": stream}
        )
        assert answer.headers["x-steerguard-revision"] == "acme/support@1"
        assert answer.headers["x-steerguard-engine"] == "stub"
        assert answer.headers["cache-control"] == "private, no-store, no-transform"
        # The engine's log has the id that the client has.
        assert answer.headers["x-request-id"] == stub.headers[-1]["x-request-id"]


def test_the_clients_key_and_headers_stay_here(gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
    client = gateway.http(acme_key)
    client.post(
        "/v1/chat/completions",
        json={"model": MODEL, "messages": HELLO},
        headers={"cookie": "sessionid=1", "x-session-id": "x", "x-data-parallel-rank": "1"},
    )
    assert acme_key not in str(stub.headers[-1])
    assert not {"cookie", "x-session-id", "x-data-parallel-rank"} & stub.headers[-1].keys()


def test_tenants_share_no_prefix_cache(gateway: Gateway, stub: StubEngine, acme_key: str, globex_key: str) -> None:
    salts = []
    for key in (acme_key, globex_key, acme_key):
        gateway.openai(key).chat.completions.create(model=MODEL, messages=HELLO)
        salts.append(stub.last["cache_salt"])

    assert salts[0] != salts[1]
    assert salts[0] == salts[2]


def test_usage_ends_a_stream_only_where_it_was_asked_for(gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
    completions = gateway.openai(acme_key).chat.completions

    plain = list(completions.create(model=MODEL, messages=HELLO, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in plain)

    counted = list(completions.create(model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}))
    assert counted[-1].choices == []
    assert counted[-1].usage and counted[-1].usage.completion_tokens == USAGE["completion_tokens"]
    assert counted[-1].model == MODEL


def test_a_skill_can_be_asked_for_as_in_the_article(
    gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, support: Persona, make_vector: MakeVector
) -> None:
    pirate = make_vector(None, "pirate", seed=7)
    completions = gateway.openai(acme_key).chat.completions

    completions.create(model=MODEL, messages=HELLO, extra_body={"steer_skill": "pirate", "steer_alpha": 1.25})
    assert stub.steering["blend"] == [{"vector": pirate.digest, "alpha": 1.25, "positions": "all"}]

    completions.create(model="support", messages=HELLO, extra_body={"steer_skill": "pirate"})
    assert [component["alpha"] for component in stub.steering["blend"]] == [1.5, 1.0]
    assert not {"steer_skill", "steer_alpha"} & stub.last.keys()


def test_a_persona_goes_before_a_base_model_of_the_same_name(
    gateway: Gateway,
    register: Any,
    stub: StubEngine,
    acme: Tenant,
    acme_key: str,
    make_persona: MakePersona,
) -> None:
    make_persona(acme, "guard", system_prompt="Refuse.")
    register(stub.url, name="another", model="acme/guard")

    gateway.openai(acme_key).chat.completions.create(model="acme/guard", messages=HELLO)
    assert stub.last["messages"][0]["content"] == "Refuse."


def test_plain_completions_are_steered_too(gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
    gateway.http(acme_key).post("/v1/completions", json={"model": "support", "prompt": "Once"})

    assert stub.last["prompt"] == "You work for Acme.\n\nOnce"
    assert stub.steering["blend"]
