"""What the gateway refuses, and that it does so in OpenAI's error shape and before an engine is asked."""

import socket
from typing import Any

import openai
import pytest

from inference.gateway.exchange import MAX_BODY_BYTES
from personas.models import Persona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import MODEL, StubEngine

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}, {"model": 7}, {"model": "a" * 300}])
def test_a_request_without_a_model_is_not_served_by_the_base_model(
    gateway: Gateway, stub: StubEngine, acme_key: str, model: dict[str, Any]
) -> None:
    answer = gateway.http(acme_key).post("/v1/chat/completions", json={"messages": HELLO, **model})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "model"
    assert stub.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cache_salt", "guessed"),
        ("request_id", "someone-elses"),
        ("vllm_xargs", {"steerguard": "{}"}),
    ],
)
def test_fields_that_cross_tenants_are_refused(
    gateway: Gateway, stub: StubEngine, acme_key: str, field: str, value: object
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        gateway.openai(acme_key).chat.completions.create(model=MODEL, messages=HELLO, extra_body={field: value})
    assert refusal.value.param and refusal.value.param.startswith(field)
    assert refusal.value.code == "unsupported_parameter"
    assert stub.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"model"',
        b"\xff\xfe",
        b'{"model": "x", "temperature": NaN}',
        b'{"model": ' + b"[" * 100_000,
        b'{"seed": ' + b"1" * 10_000 + b"}",
        b'{"model": "x", "logit_bias": {"5": 1e999}}',
        b'{"model": "x", "bad_words": ["\\ud800"]}',
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(gateway: Gateway, acme_key: str, body: bytes) -> None:
    answer = gateway.http(acme_key).post("/v1/chat/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_has_a_largest_size(gateway: Gateway, acme_key: str) -> None:
    answer = gateway.http(acme_key).post("/v1/chat/completions", content=b" " * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/engines", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/steering", 404),
        ("PUT", "/v1/steering/vectors/" + "a" * 64, 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models/support", 405),
        ("POST", "/v1/models", 405),
    ],
)
def test_nothing_else_of_the_engine_can_be_reached(
    gateway: Gateway, stub: StubEngine, acme_key: str, method: str, path: str, status: int
) -> None:
    answer = gateway.http(acme_key).request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert stub.headers == []


def test_a_client_that_hangs_up_while_sending_leaves_nothing_behind(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {acme_key}\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
    answer = gateway.openai(acme_key).chat.completions.create(model="support", messages=HELLO)
    assert answer.choices[0].message.content == "Hello!"
    assert len(stub.requests) == 1


def test_a_whole_pair_of_surrogates_is_an_ordinary_character(gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
    body = b'{"model": "%s", "messages": [{"role": "user", "content": "\\ud83d\\ude00"}]}' % MODEL.encode()
    assert gateway.http(acme_key).post("/v1/chat/completions", content=body).status_code == 200
    assert stub.last["messages"][0]["content"] == "\N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n": 65, "prompt": "a"}, "n"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": ["a"] * 13, "n": 5}, "prompt"),
        ({"prompt": [[1, 2]] * 65}, "prompt"),
    ],
)
def test_one_request_cannot_fill_a_whole_batch(
    gateway: Gateway, stub: StubEngine, acme_key: str, body: dict[str, Any], field: str
) -> None:
    answer = gateway.http(acme_key).post("/v1/completions", json={"model": MODEL, **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert stub.requests == []


def test_a_prompt_of_many_tokens_is_one_prompt(gateway: Gateway, stub: StubEngine, acme_key: str) -> None:
    answer = gateway.http(acme_key).post("/v1/completions", json={"model": MODEL, "prompt": [7] * 500, "n": 2})
    assert answer.status_code == 200


def test_a_personas_beam_search_is_refused_because_it_would_not_be_steered(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    body = {"messages": HELLO, "use_beam_search": True, "n": 2}
    refused = gateway.http(acme_key).post("/v1/chat/completions", json={"model": "support", **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "use_beam_search")
    assert gateway.http(acme_key).post("/v1/chat/completions", json={"model": MODEL, **body}).status_code == 200
