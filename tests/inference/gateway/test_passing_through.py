"""Whatever a request says and vLLM takes arrives there as it was said, and what comes back arrives here."""

from typing import Any

import pytest

from personas.models import Persona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import DONE, HEAD, MODEL, StubEngine, says, streams

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL: Any = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}

CHAT_FIELDS: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "structured_outputs": {"regex": "a+"},
    "logprobs": True,
    "top_logprobs": 3,
    "n": 2,
    "seed": 7,
    "stop": ["END", "\n"],
    "stop_token_ids": [2],
    "temperature": 0.9,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "max_tokens": 9,
    "max_completion_tokens": 9,
    "min_tokens": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"50": -100},
    "bad_words": ["no"],
    "ignore_eos": True,
    "skip_special_tokens": False,
    "prompt_logprobs": 1,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "return_token_ids": True,
    "vllm_xargs": {"other_plugin": 1},
    "user": "u-1",
    "a_field_of_tomorrow": {"any": ["thing", None]},
}


@pytest.mark.parametrize("field", CHAT_FIELDS)
def test_a_field_arrives_as_it_was_said(gateway: Gateway, stub: StubEngine, acme_key: str, field: str) -> None:
    value = CHAT_FIELDS[field]
    body = {"model": MODEL, "messages": HELLO, field: value}
    assert gateway.http(acme_key).post("/v1/chat/completions", json=body).status_code == 200
    assert stub.last[field] == value
    assert stub.last.keys() == {"model", "messages", "cache_salt", field}


def test_they_all_arrive_together_at_a_steered_persona(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    body = {"model": "support", "messages": HELLO, **CHAT_FIELDS, "stream": True}
    answer = gateway.http(acme_key).post(
        "/v1/chat/completions", json={**body, "stream_options": {"continuous_usage_stats": True}}
    )
    assert answer.status_code == 200
    assert {name: stub.last[name] for name in CHAT_FIELDS if name != "vllm_xargs"} == {
        name: value for name, value in CHAT_FIELDS.items() if name != "vllm_xargs"
    }
    assert stub.last["vllm_xargs"]["other_plugin"] == 1
    assert stub.steering["blend"]
    assert stub.last["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}


def test_a_conversation_with_tools_arrives_and_the_call_comes_back(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    stub.does = says({"id": "1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": choices})
    conversation: Any = [*HELLO, message, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    answer = gateway.openai(acme_key).chat.completions.create(model="support", messages=conversation, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "tool_calls"
    calls: Any = answer.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"city": "Köln"}']
    assert stub.last["messages"][1:] == conversation


def test_a_call_of_a_tool_is_streamed_piece_by_piece(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    pieces = ['{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\\"city\\""}}']
    pieces += ['{"index":0,"function":{"arguments":": \\"Köln\\"}"}}']
    chunks = [f'data: {HEAD},"choices":[{{"index":0,"delta":{{"tool_calls":[{piece}]}}}}]}}\n\n' for piece in pieces]
    stub.does = streams(*(chunk.encode() for chunk in chunks), DONE)
    events = gateway.openai(acme_key).chat.completions.create(model="support", messages=HELLO, stream=True)
    calls = [call for event in events for call in event.choices[0].delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in calls if call.function) == '{"city": "Köln"}'


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
    ],
)
@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_without_a_model_nothing_is_answered_anywhere(
    gateway: Gateway, stub: StubEngine, acme_key: str, path: str, prompt: dict[str, Any], model: dict[str, Any]
) -> None:
    answer = gateway.http(acme_key).post(path, json={**prompt, **model})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert stub.requests == []
