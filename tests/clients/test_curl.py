"""`curl -N`: what comes over the wire, as it comes."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Any

import pytest
from aiohttp import web

from personas.models import Persona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import DONE, StubEngine, chunk, steered, streams
from tests.waiting import PATIENCE_S

BODY = json.dumps({"model": "support", "stream": True, "messages": [{"role": "user", "content": "Hello"}]})

Curl = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def curl(gateway: Gateway, acme_key: str) -> Curl:
    def start(*options: str) -> "subprocess.Popen[bytes]":
        command = ["curl", "-N", "-s", "--max-time", "60", "--noproxy", "*", *options]
        command += ["-H", f"Authorization: Bearer {acme_key}", "-H", "Content-Type: application/json"]
        command += ["-d", BODY, f"{gateway.url}/v1/chat/completions"]
        return subprocess.Popen(command, stdout=subprocess.PIPE)

    return start


def next_event(stdout: IO[bytes] | None) -> str:
    assert stdout is not None
    line = stdout.readline().decode()
    assert stdout.readline() == b"\n"
    return line.removeprefix("data: ").strip()


def test_each_chunk_comes_before_the_engine_has_made_the_next(curl: Curl, stub: StubEngine, support: Persona) -> None:
    words = ["Grüße", " 世界", " 🎉", ""]
    seen = [threading.Event() for _ in words]

    async def wait_for_the_reader(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **steered(body)})
        await response.prepare(request)
        for word, read in zip(words, seen, strict=True):
            await response.write(chunk(word, None if word else "stop"))
            await asyncio.to_thread(read.wait, PATIENCE_S)
        await response.write(DONE)
        return response

    stub.does = wait_for_the_reader
    with curl() as process:
        for word, read in zip(words, seen, strict=True):
            assert json.loads(next_event(process.stdout))["choices"][0]["delta"]["content"] == word
            read.set()
        assert next_event(process.stdout) == "[DONE]"
    assert process.returncode == 0


def test_curl_that_is_stopped_stops_the_engine(curl: Curl, stub: StubEngine, support: Persona) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    with curl() as process:
        next_event(process.stdout)
        process.kill()
    assert stub.aborted.wait(PATIENCE_S)


def test_the_answer_says_what_it_is(curl: Curl, stub: StubEngine, support: Persona) -> None:
    with curl("-i") as process:
        assert process.stdout is not None
        head, _, body = process.stdout.read().decode().replace("\r\n", "\n").partition("\n\n")
    status, *lines = head.splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert status == "HTTP/1.1 200 OK"
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["x-steerguard-revision"] == "acme/support@1"
    assert body.rstrip().endswith("data: [DONE]")
