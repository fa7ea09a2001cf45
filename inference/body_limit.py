"""How large the body of a request to Django may be, decided while it comes.

Django reads a whole body, to a file, before it looks at the request, and trusts `Content-Length` to exist. So a body
that ends too late, or never, would fill the disk, whoever sends it. `/v1` has limits of its own, per route.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from personas.api.problems import CONTENT_TYPE, problem

Application = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


class BodyLimit:
    """Answers a request whose body has more bytes than its path may with 413, as problem details below `/api/`."""

    def __init__(self, application: Application, limit_of: Callable[[str], int]) -> None:
        self._application = application
        self._limit_of = limit_of

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit_bytes = left = self._limit_of(scope["path"])
        if _declared_length(scope["headers"]) > limit_bytes:
            await _refuse(limit_bytes, scope, send)
        else:

            async def receive_bounded() -> Any:
                nonlocal left
                if left >= 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                # The application is told that the client left, so that it drops what it has.
                return message if left >= 0 else {"type": "http.disconnect"}

            await self._application(scope, receive_bounded, send)
            if left < 0:
                await _refuse(limit_bytes, scope, send)


async def _refuse(limit_bytes: int, scope: Any, send: Any) -> None:
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    detail = f"The request body is larger than {limit_bytes} bytes."
    if scope["path"].startswith("/api/"):
        body, content_type = json.dumps(problem(status, "content-too-large", detail)).encode(), CONTENT_TYPE
    else:
        body, content_type = detail.encode(), "text/plain; charset=utf-8"
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"private, no-store"),
        (b"connection", b"close"),  # the rest of the body is not read
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _declared_length(headers: list[tuple[bytes, bytes]]) -> int:
    """What the client says it will send. Servers refuse what is no number, and stop reading there."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
