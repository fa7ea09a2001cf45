"""HTTP to the engines: a POST, and its answer as it comes, over connections that are kept for the next request.

Only what the relay needs, since it is most of what a request costs: no redirects, cookies or encodings, no proxies, no
timer and no task for a request. httptools (llhttp) reads the bytes; docs/decisions/0004-gateway.md has the figures.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools

# Longest head of an answer. An engine's is a few hundred bytes.
MAX_HEAD_BYTES = 64 * 1024
# What is kept of an answer that nobody takes, before the engine has to wait.
MAX_WAITING_BYTES = 64 * 1024
SWEEP_EVERY_S = 1.0

_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


class ConnectionProblem(Exception):
    """The engine, or the way to it, is at fault. What has come of the answer up to then is read before it is raised."""


class NotConnected(ConnectionProblem):
    """There is nobody at the engine's address."""


class BrokenOff(ConnectionProblem):
    """The connection ended before the answer did, or what came is no HTTP."""


class Silent(ConnectionProblem):
    """Nothing came for too long."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an engine listens, and what its paths begin with."""

    host: str
    port: int
    tls: bool
    authority: str
    prefix: str


class Connections:
    """One event loop's connections, kept for `idle_s` after an answer."""

    def __init__(self, *, connect_timeout_s: float, silence_timeout_s: float, idle_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._silence_timeout_s = silence_timeout_s
        self._idle_s = idle_s
        self._idle: dict[Origin, list[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    async def post(self, url: str, path: str, headers: Mapping[str, str], body: bytes, *, reuse: bool = True) -> Answer:
        """The answer to `body`, its head having come. `url` is the engine's, `reuse` whether a kept connection will do.

        Raises NotConnected, BrokenOff, Silent; ValueError for a header that can't be one.
        """
        origin = parse_origin(url)
        request = _write_request(origin, path, headers, body)
        connection = self._take(origin) if reuse else None
        if connection is None:
            connection = await self._connect(origin)
        answer = connection.ask(request)
        try:
            await answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in list(self._open):
            connection.abort()

    def _take(self, origin: Origin) -> _Connection | None:
        """A kept connection: the one that was used last, so that those which aren't needed grow old."""
        kept = self._idle.get(origin)
        now_s = asyncio.get_running_loop().time()
        while kept:
            connection = kept.pop()
            if connection.is_open and now_s - connection.idle_since_s < self._idle_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: _Connection(self, origin), origin.host, origin.port, ssl=True if origin.tls else None
                )
        except (OSError, TimeoutError, UnicodeError) as error:
            raise NotConnected(str(error) or repr(error)) from error
        if (opened := transport.get_extra_info("socket")) is not None:
            # Whole answers are silent for minutes, in which a firewall in between may forget the connection.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return connection

    def note_open(self, connection: _Connection) -> None:
        self._open.add(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep)

    def note_idle(self, connection: _Connection) -> None:
        self._idle.setdefault(connection.origin, []).append(connection)

    def note_closed(self, connection: _Connection) -> None:
        self._open.discard(connection)
        kept = self._idle.get(connection.origin, [])
        if connection in kept:
            kept.remove(connection)
        if not kept:
            self._idle.pop(connection.origin, None)

    def _sweep(self) -> None:
        """One timer for all: what has been idle or silent for too long goes."""
        loop = asyncio.get_running_loop()
        for connection in list(self._open):
            if connection.answer is None:
                if loop.time() - connection.idle_since_s >= self._idle_s:
                    connection.abort()
            elif connection.answer.silence_s(loop.time()) >= self._silence_timeout_s:
                connection.fail(Silent(f"Nothing came for {self._silence_timeout_s:g} s."))
        self._sweeping = loop.call_later(SWEEP_EVERY_S, self._sweep) if self._open else None


class Answer:
    """An engine's answer: `status` and `headers` (names in lower case), and the body as it comes."""

    def __init__(self, connection: _Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._loop = loop
        self._connection: _Connection | None = connection  # until the answer is complete
        self._has_begun = False
        self._parts: list[bytes] = []
        self._waiting_bytes = 0
        self._problem: ConnectionProblem | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since_s = 0.0

    async def begin(self) -> None:
        """Waits for the head."""
        while not self._has_begun:
            if self._problem is not None:
                raise self._problem
            await self._wait()

    async def read_any(self) -> bytes:
        """Whatever has come since, at least a byte; none at the end. Raises BrokenOff, Silent."""
        while not self._parts:
            if self._problem is not None:
                raise self._problem
            if self._connection is None:
                return b""
            await self._wait()
        parts, self._parts = self._parts, []
        self._waiting_bytes = 0
        if self._connection is not None:
            self._connection.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Let go of it. Where it is not complete the connection is closed, which aborts the generation."""
        if self._connection is not None:
            self._connection.abort()

    def silence_s(self, now_s: float) -> float:
        """For how long somebody has waited for more of it."""
        return now_s - self._waiting_since_s if self._waiter is not None else 0.0

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        self._waiting_since_s = self._loop.time()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the connection has to tell.

    def note_head(self, status: int) -> None:
        self.status = status
        self._has_begun = True
        self._wake()

    @property
    def has_begun(self) -> bool:
        return self._has_begun

    def note_part(self, part: bytes) -> bool:
        """Returns whether there is room for more."""
        self._parts.append(part)
        self._waiting_bytes += len(part)
        self._wake()
        return self._waiting_bytes < MAX_WAITING_BYTES

    def note_end(self, problem: ConnectionProblem | None = None) -> None:
        self._problem = problem
        self._connection = None
        self._wake()


class _Connection(asyncio.Protocol):
    """One answer at a time: `answer` is the one that is under way. httptools calls the methods named `on_…`."""

    def __init__(self, pool: Connections, origin: Origin) -> None:
        self.origin = origin
        self.answer: Answer | None = None
        self.idle_since_s = 0.0
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = 0
        self._ends_with_connection = False
        self._paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes) -> Answer:
        answer = Answer(self, self._loop)
        if self._transport is None or self._transport.is_closing():
            answer.note_end(BrokenOff("The engine closed the connection at once."))
            return answer
        self.answer = answer
        self._head_bytes = 0
        self._transport.write(request)
        return answer

    def abort(self) -> None:
        self.fail(BrokenOff("The answer was let go of."))

    def fail(self, problem: ConnectionProblem) -> None:
        """Close the connection at once, an answer under way ending with `problem`."""
        if self.answer is not None:
            answer, self.answer = self.answer, None
            answer.note_end(problem)
        if self._transport is not None:
            self._transport.abort()

    def resume_reading(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are of no class of asyncio's
        self.idle_since_s = self._loop.time()
        self._pool.note_open(self)

    def data_received(self, data: bytes) -> None:
        if self.answer is None:
            self.abort()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.fail(BrokenOff("What the engine sent is no HTTP."))
            return
        if self.answer is not None and not self.answer.has_begun:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.fail(BrokenOff(f"The head of the engine's answer is longer than {MAX_HEAD_BYTES} bytes."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.answer is not None:
            answer, self.answer = self.answer, None
            is_whole = answer.has_begun and self._ends_with_connection and exc is None
            answer.note_end(None if is_whole else BrokenOff("The engine closed the connection."))
        self._pool.note_closed(self)

    def on_message_begin(self) -> None:
        if self.answer is None:
            self.abort()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.answer is not None and not self.answer.has_begun:  # and no trailer
            self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self.answer is None or status < 200:
            return
        headers = self.answer.headers
        self._ends_with_connection = not ("content-length" in headers or "transfer-encoding" in headers)
        self.answer.note_head(status)

    def on_body(self, body: bytes) -> None:
        if self.answer is not None and not self.answer.note_part(body) and not self._paused:
            self._paused = True
            if self._transport is not None:
                self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self.answer is None:
            return
        if not self.answer.has_begun:
            self.answer.headers.clear()  # an interim answer, such as 100 Continue
            return
        answer, self.answer = self.answer, None
        answer.note_end()
        self.resume_reading()
        if self.is_open and self._parser.should_keep_alive():
            self.idle_since_s = self._loop.time()
            self._pool.note_idle(self)
        else:
            self.abort()


@lru_cache(maxsize=1024)
def parse_origin(url: str) -> Origin:
    """Raises ValueError where `url` is no http or https URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"an engine's URL must be http:// or https://, not {url!r}")
    tls = parts.scheme == "https"
    authority = parts.netloc.rpartition("@")[2]
    return Origin(parts.hostname, parts.port or (443 if tls else 80), tls, authority, parts.path.rstrip("/"))


def _write_request(origin: Origin, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"POST {origin.prefix}{path} HTTP/1.1", f"host: {origin.authority}"]
    for name, value in headers.items():
        if _NOT_IN_A_HEADER.search(value):
            raise ValueError(f"the header {name!r} holds a control character")
        lines.append(f"{name}: {value}")
    lines.append(f"content-length: {len(body)}\r\n\r\n")
    return "\r\n".join(lines).encode("latin-1") + body
