"""uvicorn's HTTP with ends to it: how long and how large a request may be before and while it is read.

uvicorn waits forever for a client that sends nothing, or a byte now and then, and keeps any number of headers of any
length. A proxy in front would mind that; this product is also served without one. `uvicorn --http
inference.bounded_http:BoundedHttp` uses it. How large a body may be depends on the path and is decided there
(inference.body_limit, the gateway's routes).
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

MAX_HEADERS = 100
MAX_HEAD_BYTES = 64 * 1024  # the request line and all headers

# How long a new connection may say nothing. (Between requests, uvicorn's own --timeout-keep-alive holds.)
FIRST_BYTE_TIMEOUT_S = 15.0
# From a request's first byte to the end of its headers.
HEAD_TIMEOUT_S = 15.0
# A body may take this long, and longer for as long as it comes at MIN_BYTES_PER_S on average.
BODY_TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 4096
LOOK_AGAIN_S = 5.0
# What may come around the bytes of a body: chunks' lengths, their extensions and trailers, which nobody reads.
BYTES_PER_BODY_BYTE = 16


class BoundedHttp(HttpToolsProtocol):
    """A request that comes whole in one piece, as nearly all do, costs no timer."""

    # Where the message that is being received is: None between messages.
    _part: str | None = None
    _refused = False
    _part_bytes = 0
    _body_bytes = 0
    _part_began_s = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(FIRST_BYTE_TIMEOUT_S, self._look, "head")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._part is None and self._timer is not None:
            self._stop_waiting()
        before = self._part
        super().data_received(data)
        if self._part is None or self._refused:
            if self._timer is not None:
                self._stop_waiting()
            return
        if self._part != before or self._timer is None:
            self._wait_for(self._part)
        self._part_bytes += len(data)
        if self._part == "head" and self._part_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._part == "body" and self._part_bytes > 2 * MAX_HEAD_BYTES + BYTES_PER_BODY_BYTE * self._body_bytes:
            self._refuse(HTTPStatus.BAD_REQUEST)

    def on_message_begin(self) -> None:
        self._part = "head"
        self._stop_waiting()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        # Together with what is counted in data_received this bounds the head, whether or not it came in one piece.
        if len(self.headers) > MAX_HEADERS or _size_of(self.url, self.headers) > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if not self._refused:
            self._part, self._body_bytes = "body", 0
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            self._body_bytes += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            self._part = None
            super().on_message_complete()

    def _wait_for(self, part: str) -> None:
        self._stop_waiting()
        self._part_bytes, self._part_began_s = 0, self.loop.time()
        after_s = HEAD_TIMEOUT_S if part == "head" else BODY_TIMEOUT_S
        self._timer = self.loop.call_later(after_s, self._look, part)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, part: str) -> None:
        """The time is up for what is being received, unless it is a large body on its way, or we are what is slow."""
        took_s = self.loop.time() - self._part_began_s
        is_answered = self.cycle is not None and self.cycle.response_complete
        if part == "body" and not is_answered:
            if self.flow.read_paused:
                self._part_began_s = self.loop.time()
            if self.flow.read_paused or self._part_bytes >= took_s * MIN_BYTES_PER_S:
                self._timer = self.loop.call_later(LOOK_AGAIN_S, self._look, part)
                return
        self._timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT)

    def _refuse(self, status: HTTPStatus) -> None:
        """Say so, where that can't be taken for a part of another answer, and hang up."""
        self._refused = True
        self._stop_waiting()
        if self._part == "body":
            is_answering = self.cycle.response_started
        else:  # the cycle is the request's before
            is_answering = self.cycle is not None and not self.cycle.response_complete
        if self._part is not None and not is_answering:
            text = status.phrase.encode()
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(text) + text)
        self.transport.close()


def _size_of(url: bytes, headers: list[tuple[bytes, bytes]]) -> int:
    return len(url) + sum([len(name) + len(value) for name, value in headers])
