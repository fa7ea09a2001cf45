"""The Responses API and embeddings, where the engine has them."""

from typing import Any

import openai
import pytest

from personas.models import Persona, Tenant
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import MODEL, StubEngine, refuses, responds, says, streams

EMBEDDING = {
    "id": "embd-1",
    "object": "list",
    "created": 1,
    "model": MODEL,
    "data": [{"index": 0, "object": "embedding", "embedding": [0.5, 0.25]}],
    "usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0},
}


class TestResponses:
    def test_are_the_personas(self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
        stub.does = responds
        answer = gateway.openai(acme_key).responses.create(model="support", input="Hi", instructions="In French.")

        assert (answer.output_text, answer.model) == ("Hello!", "support")
        assert answer.usage and answer.usage.total_tokens == 7
        assert stub.paths == ["/v1/responses"]
        assert stub.last["instructions"] == "You work for Acme.\n\nIn French."
        assert (stub.last["model"], stub.last["temperature"], stub.last["store"]) == (MODEL, 0.2, False)
        assert stub.steering["blend"]
        # What the persona is told is not said.
        assert answer.instructions == "In French."

    def test_are_streamed_under_the_personas_name(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        stub.does = responds
        events: list[Any] = list(gateway.openai(acme_key).responses.create(model="support", input="Hi", stream=True))
        assert [event.type for event in events] == [
            "response.created",
            "response.output_text.delta",
            "response.completed",
        ]
        assert {events[0].response.model, events[2].response.model} == {"support"}
        assert {events[0].response.instructions, events[2].response.instructions} == {None}
        assert events[1].delta == "Hello!"
        assert events[2].response.usage.total_tokens == 7

    def test_that_break_off_raise_in_the_openai_client(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = streams(b'event: response.output_text.delta\ndata: {"type": "x"}\n\n', then="cut")
        with pytest.raises(openai.APIError, match="broke off"):
            list(gateway.openai(acme_key).responses.create(model=MODEL, input="Hi", stream=True))

    @pytest.mark.parametrize("field", [{"previous_response_id": "resp_1"}, {"background": True}])
    def test_do_not_reach_into_the_engines_memory(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, field: dict[str, Any]
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            gateway.openai(acme_key).responses.create(model=MODEL, input="Hi", **field)
        assert (refusal.value.param, refusal.value.code) == (next(iter(field)), "unsupported")
        assert stub.requests == []
        assert gateway.http(acme_key).get("/v1/responses/resp_1").status_code == 404

    def test_that_an_engine_does_not_steer_are_not_passed_off_as_steered(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tests.inference.gateway.stub_engine.steered", lambda body: {})
        stub.does = responds
        assert gateway.http(acme_key).post("/v1/responses", json={"model": "support", "input": "Hi"}).status_code == 502


class TestEmbeddings:
    def test_are_the_base_models(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = says(EMBEDDING)
        answer = gateway.openai(acme_key).embeddings.create(model=MODEL, input="Hi", encoding_format="float")
        assert answer.data[0].embedding == [0.5, 0.25]
        assert answer.model == MODEL
        assert stub.paths == ["/v1/embeddings"]
        assert len(stub.last["cache_salt"]) == 64

    def test_of_a_persona_that_only_samples_are_made_under_its_name(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, make_persona: MakePersona
    ) -> None:
        make_persona(acme, "cold", sampling={"temperature": 0})
        stub.does = says(EMBEDDING)
        answer = gateway.http(acme_key).post("/v1/embeddings", json={"model": "cold", "input": ["Hi"]})
        assert answer.json()["model"] == "cold"
        assert "temperature" not in stub.last

    def test_of_a_steered_persona_are_refused(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            gateway.openai(acme_key).embeddings.create(model="support", input="Hi")
        assert (refusal.value.param, refusal.value.code) == ("model", "unsupported")
        assert stub.requests == []


@pytest.mark.parametrize(("path", "body"), [("/v1/embeddings", {"input": "Hi"}), ("/v1/responses", {"input": "Hi"})])
@pytest.mark.parametrize("status", [404, 501])
def test_what_the_engine_does_not_have_is_said_to_be_unsupported(
    gateway: Gateway, stub: StubEngine, acme_key: str, path: str, body: dict[str, Any], status: int
) -> None:
    stub.does = refuses(status, "Not Found")
    answer = gateway.http(acme_key).post(path, json={"model": MODEL, **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported", "model")
    assert path in error["message"]
