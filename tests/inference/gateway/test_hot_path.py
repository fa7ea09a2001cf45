"""What a request may not cost, and what proxies in front must be told."""

import traceback
from contextlib import ExitStack
from typing import Any

import pytest
from django.db.backends.utils import CursorWrapper

from inference.gateway import exchange
from inference.gateway.loading import DirectoryLoader
from personas.models import Persona
from tests.inference.gateway.stub_engine import DONE, MODEL, StubEngine, chunk, streams
from tests.server import Gateway
from tests.waiting import eventually

ASK: dict[str, Any] = {"model": "support", "messages": [{"role": "user", "content": "Hello"}]}


class Queries:
    """What any thread asks of the database: to read the picture of it that requests go by, and for anything else."""

    def __init__(self) -> None:
        self.for_the_picture = 0
        self.for_others: list[str] = []

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        execute = CursorWrapper.execute

        def note(cursor: CursorWrapper, sql: Any, params: Any = None) -> Any:
            if any(frame.f_code is DirectoryLoader.load.__code__ for frame, _ in traceback.walk_stack(None)):
                self.for_the_picture += 1
            else:
                self.for_others.append(str(sql))
            return execute(cursor, sql, params)

        monkeypatch.setattr(CursorWrapper, "execute", note)


def test_requests_and_open_streams_ask_nothing_of_the_database(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = Queries()
    queries.watch(monkeypatch)
    client = gateway.http(acme_key)
    assert client.post("/v1/chat/completions", json={**ASK, "model": "nobody"}).status_code == 404
    assert queries.for_the_picture > 0
    stub.does, well = streams(chunk("Hel"), then="hangs"), stub.does
    with ExitStack() as stack:
        for _ in range(5):
            stream = client.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True})
            assert stack.enter_context(stream).status_code == 200
        stub.does = well
        for path, body in (("/v1/chat/completions", ASK), ("/v1/completions", {"model": MODEL, "prompt": "Hello"})):
            assert client.post(path, json=body).status_code == 200
        assert client.get("/v1/models").status_code == 200
    assert queries.for_others == []


@pytest.mark.parametrize("stream", [True, False])
def test_proxies_are_told_to_pass_on_what_comes_when_it_comes(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, stream: bool
) -> None:
    asked = gateway.http(acme_key).post(
        "/v1/chat/completions", json={**ASK, "stream": stream}, headers={"accept-encoding": "gzip, br"}
    )
    assert asked.headers["x-accel-buffering"] == "no"
    assert set(asked.headers["cache-control"].split(", ")) == {"private", "no-store", "no-transform"}
    assert "content-encoding" not in asked.headers


def test_silence_before_the_first_token_is_filled_too(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "KEEP_ALIVE_S", 0.05)
    stub.does = streams(then="hangs")
    body = {**ASK, "stream": True}
    with gateway.http(acme_key).stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert [next(lines), next(lines)] == [": keep-alive", ": keep-alive"]


def test_an_answer_that_is_quick_is_not_watched_and_a_slow_one_is(
    gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watching for a hang-up costs a task; a client that stays away until then is noticed all the same."""
    watched: list[exchange.Exchange] = []
    watch = exchange.Exchange._begin_to_watch

    def note(self: exchange.Exchange) -> None:
        watched.append(self)
        watch(self)

    monkeypatch.setattr(exchange.Exchange, "_begin_to_watch", note)
    monkeypatch.setattr(exchange, "WATCH_AFTER_S", 30.0)
    stub.does = streams(chunk("Hello", "stop"), DONE)
    assert gateway.http(acme_key).post("/v1/chat/completions", json={**ASK, "stream": True}).text.endswith("[DONE]\n\n")
    assert watched == []
    monkeypatch.setattr(exchange, "WATCH_AFTER_S", 0.0)
    stub.does = streams(chunk("Hel"), then="hangs")
    with gateway.http(acme_key).stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        next(answer.iter_lines())
    eventually(stub.aborted.is_set)
    assert len(watched) == 1
