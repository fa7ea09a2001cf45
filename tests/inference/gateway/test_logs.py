"""What reaches the log: never keys, paths or query strings, and texts only for a tenant that wants them there."""

import io
import logging
from collections.abc import Iterator
from typing import Any

import httpx
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


# This test's own client, the engine's stand-in, and the machinery below both of them and the product.
OTHERS = ("httpx", "httpcore", "openai", "aiohttp.access", "aiohttp.server", "aiohttp.web", "asyncio", "urllib3")


class Log(io.StringIO):
    """What the product has written."""

    def lines_of(self, request_id: str) -> list[str]:
        return [line for line in self.getvalue().splitlines() if f"request_id={request_id}" in line]

    def line_of(self, answer: httpx.Response) -> str:
        """The request's own line, which is written when the answer has been sent."""

        def found() -> list[str]:
            return [line for line in self.lines_of(answer.headers["x-request-id"]) if "outcome=" in line]

        eventually(found)
        (line,) = found()
        return line


@pytest.fixture
def log() -> Iterator[Log]:
    """Everything that any logger of the product's says, whatever its level, as the product formats it."""
    written = Log()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.getLogger().handlers[0].formatter)
    handler.addFilter(lambda record: not record.name.startswith(OTHERS))
    root, requests = logging.getLogger(), logging.getLogger("gateway.requests")
    loggers = [root, *map(logging.getLogger, ("gateway", "uvicorn", "uvicorn.error", "aiohttp", "engines"))]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    for logger in (root, requests):
        logger.addHandler(handler)
    yield written
    for logger in (root, requests):
        logger.removeHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def whole_answer() -> dict[str, Any]:
    message = {"role": "assistant", "content": ANSWER}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": MODEL, "choices": [{"message": message}]}


def ask(gateway: Gateway, key: str, **more: Any) -> httpx.Response:
    body = {"model": "support", "messages": [{"role": "user", "content": PROMPT}], **more}
    return gateway.http(key).post("/v1/chat/completions?api_key=secret-in-the-query", json=body)


def test_neither_texts_nor_keys_nor_query_strings_are_logged(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, log: Log, monkeypatch: Any
) -> None:
    answers: list[httpx.Response] = []

    def asked(key: str = acme_key, **more: Any) -> int:
        answers.append(ask(gateway, key, **more))
        return answers[-1].status_code

    stub.does = says(whole_answer())
    assert asked() == 200
    stub.does = streams(chunk(ANSWER), usage_chunk(), DONE)
    assert asked(stream=True) == 200
    stub.does = streams(chunk(ANSWER), then="cut")
    assert asked(stream=True) == 200
    for status in (400, 404, 429, 500, 503):
        # Engines quote what they were sent.
        stub.does = refuses(status, f"What is {PROMPT!r}?")
        assert asked() in (400, 429, 502, 503)
    stub.does = dies()
    assert asked() == 503
    assert asked(steer_skill=PROMPT) == 400
    assert asked(model=PROMPT) == 404
    assert asked(acme_key + "x") == 401
    client = gateway.http(acme_key)
    answers.append(client.get("/v1/models/secret-in-the-path?key=secret-in-the-query"))
    answers.append(client.get("/v1/secret-in-the-path"))
    answers.append(client.post("/v1/chat/completions", content=PROMPT.encode()))
    assert [answer.status_code for answer in answers[-3:]] == [404, 404, 400]

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise ValueError(f"no number: {PROMPT}")

    monkeypatch.setattr("inference.gateway.app.compose_parts", fail)
    assert asked() == 500

    for answer in answers:
        assert f"status={answer.status_code}" in log.line_of(answer)
    assert "the gateway failed" in log.getvalue()
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
    log: Log,
    stream: bool,
) -> None:
    services.update_tenant(tenant=acme, logs_prompts=True)
    halves = chunk(ANSWER[:10]), chunk(ANSWER[10:], "stop")
    stub.does = streams(*halves, usage_chunk(), DONE) if stream else says(whole_answer())
    # A gateway that is up hears of the change a moment later.
    eventually(lambda: PROMPT in log.line_of(ask(gateway, acme_key, stream=stream)))
    line = log.line_of(ask(gateway, acme_key, stream=stream))
    assert PROMPT in line and ANSWER in line
    assert acme_key not in log.getvalue()
    before = log.getvalue().count(PROMPT)
    theirs = ask(gateway, globex_key, model=MODEL, stream=stream)
    assert theirs.status_code == 200
    assert PROMPT not in log.line_of(theirs)
    assert log.getvalue().count(PROMPT) == before


def test_what_is_logged_of_texts_is_bounded(
    gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, support: Persona, log: Log
) -> None:
    services.update_tenant(tenant=acme, logs_prompts=True)
    stub.does = responds
    long = "word " * 10_000

    def line() -> str:
        return log.line_of(gateway.http(acme_key).post("/v1/responses", json={"model": "support", "input": long}))

    eventually(lambda: "word word" in line())
    assert "Hello!" in line()
    assert max(len(line) for line in log.getvalue().splitlines()) < 10_000


class TestTheRequestId:
    def test_is_ours_whatever_the_client_sends(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, log: Log
    ) -> None:
        sent = {"x-request-id": "mine\t<script>"}
        body = {"model": "support", "messages": [{"role": "user", "content": "Hi"}]}
        answer = gateway.http(acme_key).post("/v1/chat/completions", json=body, headers=sent)
        assert answer.headers["x-request-id"].startswith("req_")
        assert stub.headers[-1]["x-request-id"] == answer.headers["x-request-id"]
        assert "<script>" not in log.line_of(answer)
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
