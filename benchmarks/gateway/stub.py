"""The engine of `make bench-gateway`: answers at once, byte for byte as vLLM 0.32 does, and computes nothing.

It streams as an engine does: in steps, each of which gives every running stream one chunk. `GET /step-ms/20` sets the
time between steps; 0, as at the start, is as fast as it can. A stream's first chunk waits for no step.

    python -m benchmarks.gateway.stub PORT
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import cast

import uvloop

from benchmarks.gateway import CHUNKS, MODEL, WORD

_HEAD = f'{{"id":"chatcmpl-req_1","object":"chat.completion.chunk","created":1796072752,"model":"{MODEL}"'
_USAGE = {"prompt_tokens": 60, "total_tokens": 60 + CHUNKS, "completion_tokens": CHUNKS, "prompt_tokens_details": None}
_COMMON = b"HTTP/1.1 200 OK\r\nserver: stub\r\nx-steerguard-blend: " + b"b" * 64 + b"\r\nx-steerguard-dose: 0.125\r\n"


def _framed(data: str) -> bytes:
    """One server-sent event as one part of a chunked body."""
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _chunk(finish_reason: str | None = None) -> bytes:
    delta = {"content": f" {WORD}"}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    return _framed(f'{_HEAD},"choices":[{json.dumps(choice, separators=(",", ":"))}]}}')


def _whole() -> bytes:
    message: dict[str, object] = {
        "role": "assistant",
        "content": f" {WORD}" * CHUNKS,
        "refusal": None,
        "tool_calls": [],
    }
    answer = {
        "id": "chatcmpl-req_1",
        "object": "chat.completion",
        "created": 1796072752,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": _USAGE,
    }
    body = json.dumps(answer, separators=(",", ":")).encode()
    return b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (_COMMON, len(body), body)


def _other() -> bytes:
    """For whoever asks after health and models."""
    body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "stub"}]}).encode()
    return b"%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (_COMMON, len(body), body)


_START = _COMMON + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK, _LAST_CHUNK = _chunk(), _chunk("stop")
_USAGE_CHUNK = _framed(f'{_HEAD},"choices":[],"usage":{json.dumps(_USAGE, separators=(",", ":"))}}}')
_END = _framed("[DONE]") + b"0\r\n\r\n"
_WHOLE, _OTHER = _whole(), _other()


class Steps:
    """Gives every running stream a chunk, again and again."""

    def __init__(self) -> None:
        self.step_s = 0.0
        self.running: dict[Connection, int] = {}  # and how many chunks each has had
        self._task: asyncio.Task[None] | None = None

    def begin(self, connection: Connection) -> None:
        connection.write(_START + _CHUNK)
        self.running[connection] = 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time() + self.step_s
        while self.running:
            await asyncio.sleep(max(0.0, next_s - loop.time()) if self.step_s else 0)
            next_s = max(next_s + self.step_s, loop.time())
            for connection, sent in list(self.running.items()):
                if sent < CHUNKS - 1:
                    connection.write(_CHUNK)
                    self.running[connection] = sent + 1
                else:
                    del self.running[connection]
                    connection.write(_LAST_CHUNK + (_USAGE_CHUNK if connection.wants_usage else b"") + _END)


class Connection(asyncio.Protocol):
    """HTTP/1.1 as far as JSON requests need it."""

    def __init__(self, steps: Steps) -> None:
        self.wants_usage = False
        self._steps = steps
        self._received = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._steps.running.pop(self, None)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._received += data
        for head, body in self._requests():
            self._answer(head, body)

    def _requests(self) -> Iterator[tuple[bytes, bytes]]:
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            total = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
            if len(self._received) < total:
                return
            body, self._received = self._received[end + 4 : total], self._received[total:]
            yield head, body

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post /v1/chat/completions"):
            asked = json.loads(body)
            if asked.get("stream"):
                self.wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
                self._steps.begin(self)
            else:
                self.write(_WHOLE)
            return
        if head.startswith(b"get /step-ms/"):
            self._steps.step_s = int(head.split(b" ")[1].removeprefix(b"/step-ms/")) / 1000
        self.write(_OTHER)


async def serve(port: int) -> None:
    steps = Steps()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(steps), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
