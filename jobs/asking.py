"""Requests of jobs to the gateway in this process: what they are answered, and when to ask again.

A request takes the way of any other, from its key to its log line: limits, locks and usage hold for it, and a key that
was revoked meanwhile gets nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from inference.gateway.app import application
from inference.gateway.authenticate import ADMITTED_KEY
from inference.gateway.cancelling import cancel, unbroken
from inference.gateway.directory import Key
from inference.gateway.errors import EngineFailed
from inference.gateway.relay import BROKE_OFF
from inference.gateway.runtime import current_runtime
from jobs.errors import JobFailed
from jobs.models import Job

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0

BEGUN_STATUS = 200


class Refused(Exception):
    """The gateway's answer is an error. `retry_after_s` None: asking again is no use."""

    def __init__(self, status: int, answer: bytes, headers: Mapping[bytes, bytes]) -> None:
        try:
            self.body: dict[str, Any] = {"error": json.loads(answer)["error"]}
            error = self.body["error"]
            self.failure = JobFailed(str(error.get("code") or error.get("type")), str(error["message"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.failure = JobFailed("internal_error", "The gateway failed to answer this request.")
            self.body = {"error": {"message": self.failure.message, "type": "server_error", "code": "internal_error"}}
        super().__init__(self.failure.message)
        self.status = status
        self.request_id = headers.get(b"x-request-id", b"").decode("latin-1")
        worth_it = status in (429, 503) and self.failure.code != "insufficient_quota"
        retry_after = headers.get(b"retry-after")
        self.retry_after_s = float(retry_after) if worth_it and retry_after is not None else None


class Pauses:
    """How long to wait before asking again: as long as one is told to, longer each time, and not all at once."""

    def __init__(self) -> None:
        self._least_s = FIRST_PAUSE_S

    def next_s(self, asked_s: float) -> float:
        pause_s = max(asked_s, self._least_s)
        self._least_s = min(self._least_s * 2, MAX_PAUSE_S)
        return min(pause_s, MAX_PAUSE_S) * random.uniform(1.0, 1.25)  # noqa: S311  # no secret


async def key_of(job: Job) -> Key:
    """The key that asked, as it is now. Raises JobFailed."""
    live = (await current_runtime()).live
    key = live.current.keys.get(job.key_prefix)
    if key is None:
        key = (await live.refreshed({"key"})).keys.get(job.key_prefix)
    if key is None or (key.expires_at is not None and key.expires_at <= timezone.now()):
        raise JobFailed("invalid_api_key", "The API key that asked for this job has expired or was revoked.")
    return key


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer of status 200."""

    body: dict[str, Any]
    request_id: str


async def ask_whole(path: str, body: Mapping[str, Any], key: Key) -> Answer:
    """Raises Refused, EngineFailed."""
    whole, headers = bytearray(), dict[bytes, bytes]()
    async with contextlib.aclosing(call_gateway(path, body, key, headers)) as parts:
        async for part in parts:
            whole += part
    try:
        answer = json.loads(whole)
    except (ValueError, RecursionError):
        raise EngineFailed(BROKE_OFF) from None
    return Answer(answer, headers.get(b"x-request-id", b"").decode("latin-1"))


async def call_gateway(
    path: str, body: Mapping[str, Any], key: Key, headers: dict[bytes, bytes] | None = None
) -> AsyncGenerator[bytes, None]:
    """The body of the gateway's answer, part by part; its headers are put into `headers`. Raises Refused.

    Closing it is to the gateway what a client's hanging up is.
    """
    request = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=64)

    async def receive() -> dict[str, Any]:
        if (message := next(request, None)) is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    async def serve() -> None:
        try:
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
            await application({**scope, ADMITTED_KEY: key}, receive, messages.put)
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                messages.put_nowait(None)

    serving = asyncio.create_task(serve(), name="job-request")
    try:
        if (start := await messages.get()) is None:
            raise EngineFailed(BROKE_OFF)
        told = dict(start["headers"])
        if headers is not None:
            headers.update(told)
        refused, complete = bytearray(), False
        while (message := await messages.get()) is not None:
            if start["status"] == BEGUN_STATUS:
                yield message["body"]
            else:
                refused += message["body"]
            if complete := not message["more_body"]:
                break
        if start["status"] != BEGUN_STATUS:
            raise Refused(start["status"], bytes(refused), told)
        if not complete:
            raise EngineFailed(BROKE_OFF)
    finally:
        await unbroken(cancel(serving))
        if not serving.cancelled():
            serving.exception()  # logged by the gateway
