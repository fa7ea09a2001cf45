"""One HTTP request and its answer over raw ASGI: a bounded body, the answer, and noticing that nobody listens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Never

from inference.gateway.errors import BodyTooLarge, GatewayError, InvalidRequest, MethodNotAllowed
from inference.gateway.transcript import Transcript

_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # or a whole pair, which the parser joins

# ASGI's own types, as loosely as the servers and Django take them.
Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

# Text conversations stay far under it; so do a few images.
MAX_BODY_BYTES = 8 * 1024 * 1024

# Answers that come sooner need nobody to watch for the client's hang-up; it is to be noticed within 200 ms.
WATCH_AFTER_S = 0.05

# Proxies close connections that are silent for a minute or less.
KEEP_ALIVE_S = 15.0

# How long a client may take nothing of its answer before its generation is given up.
STALL_TIMEOUT_S = 60.0

# On every answer: each belongs to one key's holder, and proxies in between must pass streams on as they come.
COMMON_HEADERS = (
    (b"cache-control", b"private, no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class ClientGone(Exception):
    """The client has hung up or stopped reading: nobody can be told anything."""


class Exchange:
    """The ASGI messages of one request. `status` is None until an answer has begun.

    `headers` go with whatever answer there will be; `transcript`, where there is one, gets a copy of its text.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        self.scope = scope
        self.request_id = request_id
        self.status: int | None = None
        self.finished = False
        self.headers: dict[str, str] = {}
        self.transcript: Transcript | None = None
        self._receive = receive
        self._send = send
        self._now_s = asyncio.get_running_loop().time
        self._last_s = self._now_s()
        self._writing = False
        self._task: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._next_beat: asyncio.TimerHandle | None = None
        self._commenting: asyncio.Task[None] | None = None
        self._gone = False

    async def read_json(self) -> dict[str, Any]:
        """The body, which has to be a JSON object. Raises BodyTooLarge, InvalidRequest, ClientGone."""
        return parse_json(await self._read_body())

    async def _read_body(self) -> bytes:
        body = bytearray()
        async for part in self.read_parts(MAX_BODY_BYTES):
            body += part
        return bytes(body)

    async def read_parts(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """The body as it comes, for what is too large for memory. Raises BodyTooLarge, ClientGone."""
        length = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            length += len(part)
            if length > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            if part:
                yield part
            if not message.get("more_body", False):
                return

    async def start(self, status: int, content_type: str, headers: Mapping[str, str]) -> None:
        self.status = status
        own = {"content-type": content_type, "x-request-id": self.request_id, **self.headers, **headers}
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    *COMMON_HEADERS,
                    *[(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in own.items()],
                ],
                "trailers": False,
            }
        )

    async def write(self, data: bytes) -> None:
        """Send a part of the answer; waits while the client is behind."""
        self._writing = True
        self._last_s = self._now_s()
        if self.transcript is not None:
            self.transcript.hear(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._writing = False

    async def finish(self, data: bytes = b"") -> None:
        self.finished = True
        if self.transcript is not None:
            self.transcript.hear(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def answer(self, body: bytes, headers: Mapping[str, str] | None = None, *, status: int = 200) -> None:
        """A whole JSON answer at once."""
        length = {"content-length": str(len(body))}
        await self.start(status, "application/json", {**length, **(headers or {})})
        await self.finish(body)

    async def refuse(self, error: GatewayError, headers: Mapping[str, str] | None = None) -> None:
        all_headers = {**error.headers, **(headers or {})}
        if error.retry_after_s is not None:
            all_headers["retry-after"] = str(error.retry_after_s)
        if isinstance(error, MethodNotAllowed):
            all_headers["allow"] = ", ".join(error.allowed)
        if error.status == 401:
            all_headers["www-authenticate"] = "Bearer"
        if isinstance(error, BodyTooLarge):
            all_headers["connection"] = "close"  # the rest of the body is not read
        await self.answer(error.body(), all_headers, status=error.status)

    @contextlib.asynccontextmanager
    async def while_client_listens(self) -> AsyncIterator[None]:
        """Cancels the block when the client hangs up, and raises ClientGone in its place.

        Only for after the body has been read: the next message is then the hang-up.
        """
        self._task = asyncio.current_task()
        beginning = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin_to_watch)
        try:
            yield
        except asyncio.CancelledError:
            if not self._gone or (self._task is not None and self._task.uncancel()):
                raise
            raise ClientGone from None
        finally:
            beginning.cancel()
            if self._watcher is not None:
                self._watcher.cancel()

    @contextlib.asynccontextmanager
    async def kept_alive(self, comment: bytes) -> AsyncIterator[None]:
        """While the block streams: sends `comment` in every KEEP_ALIVE_S of silence, and hangs up on a client that
        takes nothing for STALL_TIMEOUT_S. One timer for the stream and none for a chunk, of which there are thousands.
        """
        self._beat(comment)
        try:
            yield
        finally:
            if self._next_beat is not None:
                self._next_beat.cancel()
            if self._commenting is not None:
                self._commenting.cancel()

    def _begin_to_watch(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="gateway-client-watch")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # A server also says "disconnect" once the answer is complete.
        if not self.finished:
            self._hang_up()

    def _beat(self, comment: bytes) -> None:
        limit_s = STALL_TIMEOUT_S if self._writing else KEEP_ALIVE_S
        if (rest_s := self._last_s + limit_s - self._now_s()) > 0:
            after_s = min(rest_s, KEEP_ALIVE_S)
            self._next_beat = asyncio.get_running_loop().call_later(after_s, self._beat, comment)
        elif self._writing:
            self._hang_up()
        else:
            self._commenting = asyncio.create_task(self._comment(comment), name="gateway-keep-alive")

    async def _comment(self, comment: bytes) -> None:
        try:
            async with asyncio.timeout(STALL_TIMEOUT_S):
                await self._send({"type": "http.response.body", "body": comment, "more_body": True})
        except TimeoutError:
            self._hang_up()
            return
        self._last_s = self._now_s()
        self._beat(comment)

    def _hang_up(self) -> None:
        self._gone = True
        if self._task is not None:
            self._task.cancel()


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. Raises InvalidRequest."""
    try:
        parsed = _DECODER.decode(body.decode())
        if _LONE_SURROGATE.search(body):
            # Half a character, which no tokenizer takes; whole pairs have become one character by now.
            json.dumps(parsed, ensure_ascii=False).encode()
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except UnicodeEncodeError:
        raise InvalidRequest("The body holds half a character (a lone surrogate such as \\ud800).") from None
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return parsed


def _finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is larger than any number here can be")
    return number


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is no number in JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite_float)
