"""The unchanged `openai` client for Python, with many personas as models."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from personas.models import Persona
from tests.clients.conftest import Digests, whole
from tests.inference.gateway.conftest import Gateway, RegisterEngine
from tests.inference.gateway.stub_engine import DONE, HEAD, MODEL, USAGE, StubEngine, chunk, refuses, says, streams

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(gateway: Gateway, stub: StubEngine, acme_key: str) -> openai.OpenAI:
    return gateway.openai(acme_key)


def delta(index: int = 0, finish_reason: str | None = None, **parts: Any) -> bytes:
    """One streamed choice, as vLLM writes it."""
    choice = {"index": index, "delta": parts, "logprobs": None, "finish_reason": finish_reason}
    return f'data: {HEAD},"choices":[{json.dumps(choice)}]}}\n\n'.encode()


class TestManyPersonas:
    def test_each_answers_as_itself_in_threads(self, gateway: Gateway, telling: Digests, acme_key: str) -> None:
        client = gateway.openai(acme_key)

        def ask(model: str) -> tuple[str, str | None]:
            answer = client.chat.completions.create(model=model, messages=HELLO)
            return answer.model, answer.choices[0].message.content

        with ThreadPoolExecutor(len(telling)) as pool:
            assert dict(pool.map(ask, list(telling) * 4)) == telling

    def test_each_answers_as_itself_in_streams_at_once(self, gateway: Gateway, telling: Digests, acme_key: str) -> None:
        async def ask(client: openai.AsyncOpenAI, model: str) -> str:
            stream = await client.chat.completions.create(model=model, messages=HELLO, stream=True)
            chunks = [chunk async for chunk in stream]
            assert {chunk.model for chunk in chunks} == {model}
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

        async def ask_all() -> list[str]:
            async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=acme_key, max_retries=0) as client:
                return await asyncio.gather(*(ask(client, model) for model in list(telling) * 4))

        assert asyncio.run(ask_all()) == list(telling.values()) * 4

    def test_all_are_listed_and_each_can_be_looked_up(
        self, gateway: Gateway, stub: StubEngine, personas: Digests, acme_key: str
    ) -> None:
        models = gateway.openai(acme_key).models
        assert {model.id for model in models.list()} == {*personas, MODEL}
        for name in personas:
            assert models.retrieve(name).id == name

    def test_another_tenants_key_reaches_none_of_them(
        self, gateway: Gateway, telling: Digests, globex_key: str
    ) -> None:
        client = gateway.openai(globex_key)
        for model in telling:
            with pytest.raises(openai.NotFoundError):
                client.chat.completions.create(model=model, messages=HELLO)


class TestWhatARequestMayAskFor:
    TOOLS: list[Any] = [{"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}]
    CALL = {"id": "call_1", "type": "function", "function": {"name": "find_order", "arguments": '{"id": 4711}'}}

    def test_tools(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        message = {"role": "assistant", "content": None, "tool_calls": [self.CALL]}
        stub.does = says(whole(message, finish_reason="tool_calls"))
        answer = client.chat.completions.create(model="support", messages=HELLO, tools=self.TOOLS, tool_choice="auto")

        assert stub.last["tools"] == self.TOOLS
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls or []
        assert call.model_dump() == self.CALL

    def test_tools_in_a_stream(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        function = {"name": "find_order", "arguments": ""}
        begins = delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": function}])
        goes_on = [
            delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]) for part in ('{"id"', ": 47", "11}")
        ]
        stub.does = streams(begins, *goes_on, delta(finish_reason="tool_calls"), DONE)
        with client.chat.completions.stream(model="support", messages=HELLO, tools=self.TOOLS) as stream:
            final = stream.get_final_completion()

        (call,) = final.choices[0].message.tool_calls or []
        assert (call.function.name, json.loads(call.function.arguments)) == ("find_order", {"id": 4711})

    def test_logprobs(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        token = {"token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": []}
        stub.does = says(whole({"role": "assistant", "content": "é"}, logprobs={"content": [token]}))
        answer = client.chat.completions.create(model="support", messages=HELLO, logprobs=True, top_logprobs=0)

        assert stub.last["logprobs"] is True
        logprobs = answer.choices[0].logprobs
        assert logprobs and logprobs.content and logprobs.content[0].model_dump() == token

    def test_several_answers(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        stub.does = says(whole(*({"role": "assistant", "content": text} for text in "abc")))
        answer = client.chat.completions.create(model="support", messages=HELLO, n=3)

        assert stub.last["n"] == 3
        assert [choice.message.content for choice in answer.choices] == ["a", "b", "c"]

    def test_several_answers_in_a_stream(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        parts = [delta(index, content=f"{index}{step}") for step in "xyz" for index in range(3)]
        ends = [delta(index, finish_reason="stop") for index in range(3)]
        stub.does = streams(*parts, *ends, DONE)
        with client.chat.completions.stream(model="support", messages=HELLO, n=3) as stream:
            final = stream.get_final_completion()
        assert [choice.message.content for choice in final.choices] == ["0x0y0z", "1x1y1z", "2x2y2z"]

    def test_an_answer_of_a_given_shape(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        class Order(BaseModel):
            number: int

        stub.does = says(whole({"role": "assistant", "content": '{"number": 4711}'}))
        answer = client.chat.completions.parse(model="support", messages=HELLO, response_format=Order)

        assert stub.last["response_format"]["json_schema"]["name"] == "Order"
        assert answer.choices[0].message.parsed == Order(number=4711)

    def test_usage_at_the_end_of_a_stream(self, client: openai.OpenAI, support: Persona) -> None:
        chunks = list(
            client.chat.completions.create(
                model="support", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        )
        assert chunks[-1].usage and chunks[-1].usage.total_tokens == USAGE["total_tokens"]
        assert all(chunk.usage is None for chunk in chunks[:-1])

    def test_the_id_and_headers_of_an_answer(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        raw = client.chat.completions.with_raw_response.create(model="support", messages=HELLO)
        assert raw.headers["x-steerguard-revision"] == "acme/support@1"
        answer = client.chat.completions.create(model="support", messages=HELLO)
        assert answer._request_id == stub.headers[-1]["x-request-id"]


class TestWhatGoesWrong:
    """Each in the exception that a program for OpenAI expects."""

    def test_a_wrong_key(self, gateway: Gateway, support: Persona) -> None:
        with pytest.raises(openai.AuthenticationError) as refusal:
            gateway.openai("sg_nobody00_" + "x" * 43).chat.completions.create(model="support", messages=HELLO)
        assert refusal.value.code == "invalid_api_key"

    def test_an_unknown_persona(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as refusal:
            client.chat.completions.create(model="acme/nobody", messages=HELLO)
        assert (refusal.value.code, refusal.value.param) == ("model_not_found", "model")

    def test_a_wrong_field(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        stub.does = refuses(400, "temperature must be non-negative", "temperature")
        with pytest.raises(openai.BadRequestError, match="non-negative") as refusal:
            client.chat.completions.create(model="support", messages=HELLO, temperature=-1)
        assert refusal.value.param == "temperature"
        assert refusal.value.request_id

    def test_no_engine(self, gateway: Gateway, register: RegisterEngine, acme_key: str, support: Persona) -> None:
        register("http://127.0.0.1:9")
        with pytest.raises(openai.InternalServerError) as refusal:
            gateway.openai(acme_key).chat.completions.create(model="support", messages=HELLO)
        assert (refusal.value.status_code, refusal.value.code) == (503, "engine_unavailable")
        assert int(refusal.value.response.headers["retry-after"]) > 0

    def test_an_engine_that_fails(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        stub.does = refuses(500, "CUDA error")
        with pytest.raises(openai.InternalServerError) as refusal:
            client.chat.completions.create(model="support", messages=HELLO)
        assert (refusal.value.status_code, refusal.value.code) == (502, "engine_error")

    @pytest.mark.parametrize("stream", [True, False])
    def test_too_many_requests(
        self, gateway: Gateway, stub: StubEngine, limited_key: str, support: Persona, stream: bool
    ) -> None:
        completions = gateway.openai(limited_key).chat.completions
        completions.create(model="support", messages=HELLO)
        with pytest.raises(openai.RateLimitError) as refusal:
            completions.create(model="support", messages=HELLO, stream=stream)
        assert int(refusal.value.response.headers["retry-after"]) > 0

    def test_a_stream_that_breaks_off(self, client: openai.OpenAI, stub: StubEngine, support: Persona) -> None:
        stub.does = streams(chunk("Hel"), chunk("lo"), then="cut")
        said = []
        with pytest.raises(openai.APIError) as failure:
            for part in client.chat.completions.create(model="support", messages=HELLO, stream=True):
                said.append(part.choices[0].delta.content)
        assert said == ["Hel", "lo"]
        assert failure.value.code == "engine_error"

    def test_a_stream_in_which_the_engine_reports_an_error(
        self, client: openai.OpenAI, stub: StubEngine, support: Persona
    ) -> None:
        error = {"error": {"message": "out of blocks", "type": "InternalServerError", "code": 500}}
        stub.does = streams(chunk("Hel"), f"data: {json.dumps(error)}\n\n".encode(), DONE)
        with pytest.raises(openai.APIError, match="out of blocks"):
            list(client.chat.completions.create(model="support", messages=HELLO, stream=True))
