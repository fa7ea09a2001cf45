"""What reaches the log: never keys, paths or query strings, and texts only for a tenant that wants them there."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from personas import services
from personas.models import Persona, Tenant
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import (
    DONE,
    MODEL,
    StubEngine,
    chunk,
    dies,
    refuses,
    responds,
    says,
    streams,
    usage_chunk,
)

PROMPT = "the secret of the prompt"
ANSWER = "the secret of the answer"
SECRETS = (PROMPT, ANSWER, "secret-in-the-query", "secret-in-the-path", "You work for Acme.", "sg_")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Everything that any logger says, whatever its level, as the product formats it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.getLogger().handlers[0].formatter)
    root = logging.getLogger()
    loggers = [
        root,
        *(logging.getLogger(name) for name in ("gateway", "uvicorn", "uvicorn.error", "aiohttp", "engines")),
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    # httpx and httpcore are this test's own client.
    for name in ("httpx", "httpcore", "openai"):
        logging.getLogger(name).propagate = False
    requests = logging.getLogger("gateway.requests")
    for logger in (root, requests):
        logger.addHandler(handler)
    yield written
    for logger in (root, requests):
        logger.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for name in ("httpx", "httpcore", "openai"):
        logging.getLogger(name).propagate = True


def whole_answer() -> dict[str, Any]:
    message = {"role": "assistant", "content": ANSWER}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [{"message": message}]}


def ask(gateway: Gateway, key: str, **more: Any) -> int:
    body = {"model": "support", "messages": [{"role": "user", "content": PROMPT}], **more}
    return gateway.http(key).post("/v1/chat/completions?api_key=secret-in-the-query", json=body).status_code


def test_neither_texts_nor_keys_nor_query_strings_are_logged(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, log: io.StringIO, monkeypatch: Any
) -> None:
    stub.does = says(whole_answer())
    assert ask(gateway, acme_key) == 200
    stub.does = streams(chunk(ANSWER), usage_chunk(), DONE)
    assert ask(gateway, acme_key, stream=True) == 200
    stub.does = streams(chunk(ANSWER), then="cut")
    assert ask(gateway, acme_key, stream=True) == 200
    for status in (400, 404, 429, 500, 503):
        # Engines quote what they were sent.
        stub.does = refuses(status, f"What is {PROMPT!r}?")
        assert ask(gateway, acme_key) in (400, 429, 502, 503)
    stub.does = dies()
    assert ask(gateway, acme_key) == 503
    assert ask(gateway, acme_key, steer_skill=PROMPT) == 400
    assert ask(gateway, acme_key, model=PROMPT) == 404
    assert ask(gateway, acme_key + "x") == 401
    client = gateway.http(acme_key)
    assert client.get("/v1/models/secret-in-the-path?key=secret-in-the-query").status_code == 404
    assert client.get("/v1/secret-in-the-path").status_code == 404
    assert client.post("/v1/chat/completions", content=PROMPT.encode()).status_code == 400

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError(f"no number: {PROMPT}")

    monkeypatch.setattr("inference.gateway.app.compose_parts", fail)
    assert ask(gateway, acme_key) == 500

    assert "the gateway failed" in log.getvalue()
    assert log.getvalue().count("request_id=") > 15
    for secret in SECRETS:
        assert secret not in log.getvalue()


@pytest.mark.parametrize("stream", [False, True])
def test_a_tenant_that_wants_its_texts_logged_gets_them_and_no_other(
    gateway: Gateway,
    stub: StubEngine,
    acme: Tenant,
    acme_key: str,
    globex_key: str,
    support: Persona,
    log: io.StringIO,
    stream: bool,
) -> None:
    services.update_tenant(tenant=acme, logs_prompts=True)
    halves = chunk(ANSWER[:10]), chunk(ANSWER[10:], "stop")
    stub.does = streams(*halves, usage_chunk(), DONE) if stream else says(whole_answer())
    eventually(lambda: bool(ask(gateway, acme_key, stream=stream)) and PROMPT in log.getvalue())
    assert ANSWER in log.getvalue()
    assert acme_key not in log.getvalue()
    before = log.getvalue().count(PROMPT)
    assert ask(gateway, globex_key, model=MODEL, stream=stream) == 200
    assert log.getvalue().count(PROMPT) == before


def test_what_is_logged_of_texts_is_bounded(
    gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, support: Persona, log: io.StringIO
) -> None:
    services.update_tenant(tenant=acme, logs_prompts=True)
    stub.does = responds
    long = "word " * 10_000

    def asked() -> bool:
        gateway.http(acme_key).post("/v1/responses", json={"model": "support", "input": long})
        return "word word" in log.getvalue()

    eventually(asked)
    assert "Hello!" in log.getvalue()
    assert max(len(line) for line in log.getvalue().splitlines()) < 10_000


class TestTheRequestId:
    def test_is_ours_whatever_the_client_sends(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, log: io.StringIO
    ) -> None:
        sent = {"x-request-id": "mine\t<script>"}
        body = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
        answer = gateway.http(acme_key).post("/v1/chat/completions", json=body, headers=sent)
        request_id = answer.headers["x-request-id"]
        assert request_id.startswith("req_")
        assert stub.headers[-1]["x-request-id"] == request_id
        assert request_id in log.getvalue()
        assert "<script>" not in log.getvalue()

    @pytest.mark.parametrize(
        ("method", "path"), [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/nothing")]
    )
    def test_is_on_every_answer(self, gateway: Gateway, acme_key: str, method: str, path: str) -> None:
        for key in (acme_key, None):
            assert gateway.http(key).request(method, path).headers["x-request-id"].startswith("req_")


class TestHeaders:
    def test_say_who_answered_and_how_strongly(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        def headers_of(model: str) -> Any:
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}]}
            return gateway.http(acme_key).post("/v1/chat/completions", json=body).headers

        plain = headers_of(MODEL)
        assert (plain["x-steerguard-revision"], plain["x-steerguard-dose"]) == (MODEL, "0")
        stub.does = says(whole_answer(), headers={"x-steerguard-dose": "0.3100"})
        steered = headers_of("support")
        assert (steered["x-steerguard-revision"], steered["x-steerguard-dose"]) == ("acme/support@1", "0.3100")
        assert steered["x-steerguard-engine"] == "stub"

    def test_are_on_refusals_too(self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
        stub.does = refuses(400, "no")
        body = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
        headers = gateway.http(acme_key).post("/v1/chat/completions", json=body).headers
        assert (headers["x-steerguard-revision"], headers["x-steerguard-engine"]) == ("acme/support@1", "stub")
