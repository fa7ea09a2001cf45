"""Engines that are away, refuse, break off or fall silent, and clients that do."""

import contextlib
import json
import time
from typing import Any

import httpx
import openai
import pytest

from inference.gateway import exchange
from personas.models import Persona
from tests.inference.gateway.conftest import Gateway, RegisterEngine, eventually, leave_unanswered, serving
from tests.inference.gateway.stub_engine import (
    DONE,
    MODEL,
    StubEngine,
    chunk,
    dies,
    hangs,
    refuses,
    running_stub,
    says,
    streams,
)
from tests.waiting import PATIENCE_S, within

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK: dict[str, Any] = {"model": MODEL, "messages": HELLO}
NOBODY = "http://127.0.0.1:9"


def post(gateway: Gateway, key: str, **body: Any) -> httpx.Response:
    return gateway.http(key).post("/v1/chat/completions", json={**ASK, **body})


def assert_come_again(answer: httpx.Response) -> None:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "engine_unavailable"


class TestAnEngineThatDoesNotSayThatItSteered:
    @pytest.mark.parametrize("stream", [True, False])
    def test_is_not_believed(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, stream: bool, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("tests.inference.gateway.stub_engine.steered", lambda body: {})
        answer = post(gateway, acme_key, model="support", stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")
        assert post(gateway, acme_key, stream=stream).status_code == 200


class TestAnEngineThatIsAway:
    @pytest.mark.parametrize("stream", [True, False])
    def test_is_a_503_that_says_when_to_come_again(
        self, gateway: Gateway, register: RegisterEngine, acme_key: str, stream: bool
    ) -> None:
        register(NOBODY)
        assert_come_again(post(gateway, acme_key, stream=stream))

    def test_is_a_503_where_it_goes_away_before_it_answers(
        self, gateway: Gateway, stub: StubEngine, acme_key: str
    ) -> None:
        stub.does = dies()
        assert_come_again(post(gateway, acme_key))

    def test_is_a_503_where_none_is_registered(self, gateway: Gateway, acme_key: str, support: Persona) -> None:
        assert_come_again(post(gateway, acme_key, model="support"))

    @pytest.mark.parametrize("status", ["unreachable", "incompatible"])
    def test_is_not_asked_while_another_is_well(
        self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str, status: str
    ) -> None:
        with running_stub() as other:
            register(other.url, name="another", status=status)
            for _ in range(4):
                assert post(gateway, acme_key).headers["x-steerguard-engine"] == "stub"
            assert other.requests == []

    def test_is_stepped_over(self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str) -> None:
        register(NOBODY, name="a-dead-one")
        for _ in range(3):
            answer = post(gateway, acme_key)
            assert (answer.status_code, answer.headers["x-steerguard-engine"]) == (200, "stub")

    def test_is_stepped_over_when_it_dies_with_the_request_in_hand(
        self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str
    ) -> None:
        stub.does = dies()
        with running_stub() as other:
            register(other.url, name="zzz")
            eventually(lambda: post(gateway, acme_key).is_success)
            assert len(other.requests) == 1

    def test_is_asked_again_when_it_is_back(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does, well = dies(), stub.does
        assert_come_again(post(gateway, acme_key))
        stub.does = well
        assert post(gateway, acme_key).status_code == 200


class TestLoad:
    def test_is_spread_over_engines(self, stub: StubEngine, register: RegisterEngine, acme_key: str) -> None:
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(running_stub())
            register(other.url, name="other")
            stub.does = other.does = streams(chunk("Hel"), then="hangs")
            client = stack.enter_context(serving()).openai(acme_key)
            for _ in range(6):
                answer = stack.enter_context(client.chat.completions.create(**ASK, stream=True))
                next(iter(answer))
            assert (len(stub.requests), len(other.requests)) == (3, 3)


class TestAnEngineThatRefuses:
    def test_is_quoted_with_the_field(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = refuses(400, "temperature must be non-negative, got -3.0.", "temperature")
        with pytest.raises(openai.BadRequestError) as refusal:
            gateway.openai(acme_key).chat.completions.create(**ASK, temperature=-3, stream=True)
        assert refusal.value.param == "temperature"
        assert "non-negative" in refusal.value.message

    @pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
    def test_to_make_a_grammar_is_quoted_with_the_field_that_asked_for_it(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, field: str
    ) -> None:
        stub.does = refuses(400, "Failed to transform json schema into a grammar: Unsupported type")
        answer = post(gateway, acme_key, **{field: {"type": "json_object"}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert post(gateway, acme_key).json()["error"]["param"] is None

    def test_is_still_receiving_the_vectors_of_a_new_persona(
        self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str, support: Persona
    ) -> None:
        stub.does = refuses(400, "unknown vector", "vllm_xargs.steerguard.blend[0].vector")
        assert_come_again(post(gateway, acme_key, model="support"))
        with running_stub() as other:
            register(other.url, name="zzz")
            eventually(lambda: post(gateway, acme_key, model="support").is_success)
            assert len(other.requests) == 1

    def test_tells_a_dose_that_is_too_high(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        stub.does = refuses(400, "expected a relative dose of at most 1, found 3", "vllm_xargs.steerguard.blend")
        answer = post(gateway, acme_key, model="support")
        assert answer.status_code == 400
        assert "dose" in answer.json()["error"]["message"]

    def test_does_not_show_its_insides(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = refuses(500, "Traceback in /srv/model.py")
        answer = post(gateway, acme_key)
        assert answer.status_code == 502
        assert "/srv" not in answer.text

    def test_of_our_own_key_is_not_the_clients_fault(
        self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str
    ) -> None:
        register(stub.url, key="wrong")
        eventually(lambda: post(gateway, acme_key).status_code == 502)

    @pytest.mark.parametrize("answer", [[], {"error": {"message": "?"}}, "text"])
    def test_with_a_200_is_not_passed_on_as_an_answer(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, answer: Any
    ) -> None:
        stub.does = says(answer)
        assert post(gateway, acme_key).status_code == 502


class TestAStreamThatBreaksOff:
    @pytest.mark.parametrize("how", ["cut", "ends"])
    def test_ends_with_an_error_and_never_with_a_made_up_finish(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, how: str
    ) -> None:
        stub.does = streams(chunk("Hel"), chunk("lo")[:40], then=how)
        events = post(gateway, acme_key, stream=True).text.split("\n\n")

        assert json.loads(events[0].removeprefix("data: "))["choices"][0]["delta"]["content"] == "Hel"
        error = json.loads(events[1].removeprefix("data: "))["error"]
        assert error["code"] == "engine_error"
        assert events[2:] == ["data: [DONE]", ""]

    def test_raises_in_the_openai_client(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = streams(chunk("Hel"), then="cut")
        texts = []
        with pytest.raises(openai.APIError, match="broke off"):
            for event in gateway.openai(acme_key).chat.completions.create(**ASK, stream=True):
                texts.append(event.choices[0].delta.content)
        assert texts == ["Hel"]

    def test_because_of_an_error_tells_it(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = streams(chunk("Hel"), b'data: {"error":{"message":"KV cache is full"}}\n\n', DONE)
        with pytest.raises(openai.APIError, match="KV cache is full"):
            list(gateway.openai(acme_key).chat.completions.create(**ASK, stream=True))


class TestText:
    def test_arrives_whole_where_a_chunk_ends_inside_a_character(
        self, gateway: Gateway, stub: StubEngine, acme_key: str
    ) -> None:
        said = "naïve 漢字 🏴‍☠️\u2028\u0085"
        data = chunk(said) + DONE
        stub.does = streams(*(data[index : index + 1] for index in range(len(data))))
        (event,) = gateway.openai(acme_key).chat.completions.create(**ASK, stream=True)
        assert event.choices[0].delta.content == said

    def test_that_looks_like_an_event_stays_text(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        said = f'"model":"{MODEL}" data: [DONE]\n\n{{"error":1}}'
        stub.does = streams(chunk(said), chunk(said), DONE)
        events = list(gateway.openai(acme_key).chat.completions.create(**ASK, stream=True))
        assert [event.choices[0].delta.content for event in events] == [said, said]


class TestSilence:
    def test_is_filled_with_comments_that_clients_ignore(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "KEEP_ALIVE_S", 0.05)
        stub.does = streams(chunk("Hel"), then="hangs")
        with gateway.http(acme_key).stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
            lines = (line for line in answer.iter_lines() if line)
            assert any(line.startswith("data: {") for line in lines)
            assert [next(lines), next(lines)] == [": keep-alive", ": keep-alive"]


class TestAClientThatHangsUp:
    @pytest.mark.parametrize("stream", [True, False])
    def test_before_the_first_token_aborts_the_generation(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, stream: bool
    ) -> None:
        stub.does = hangs()
        leave_unanswered(gateway, acme_key, stub, {**ASK, "stream": stream})
        assert stub.aborted.wait(PATIENCE_S)

    def test_aborts_it_within_200_ms(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = streams(chunk("Hel"), then="hangs")

        def leave() -> float:
            stub.aborted.clear()
            with gateway.openai(acme_key) as client, client.chat.completions.create(**ASK, stream=True) as answer:
                next(iter(answer))
                left_at_s = time.monotonic()
            assert stub.aborted.wait(PATIENCE_S)
            return stub.aborted_at_s - left_at_s

        within(0.2, leave)

    def test_in_the_middle_aborts_the_generation(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does = streams(chunk("Hel"), then="hangs")
        with gateway.openai(acme_key) as client, client.chat.completions.create(**ASK, stream=True) as answer:
            next(iter(answer))
            assert not stub.aborted.is_set()
        assert stub.aborted.wait(PATIENCE_S)

    def test_by_reading_nothing_more_is_left_behind_and_costs_no_memory_meanwhile(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "STALL_TIMEOUT_S", 0.3)
        monkeypatch.setattr(exchange, "KEEP_ALIVE_S", 0.1)
        flood = chunk("x" * 100_000)
        stub.does = streams(*[flood] * 1000)
        with gateway.http(acme_key).stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}):
            assert stub.aborted.wait(PATIENCE_S)
            # What the sockets' buffers took; the rest waited in the engine.
            assert stub.sent_bytes < 30_000_000

    def test_leaves_the_engine_free_for_the_next(self, gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
        stub.does, well = streams(chunk("Hel"), then="hangs"), stub.does
        with gateway.openai(acme_key) as client, client.chat.completions.create(**ASK, stream=True) as answer:
            next(iter(answer))
        stub.does = well
        assert post(gateway, acme_key).status_code == 200
        eventually(stub.aborted.is_set)
