"""`GET /events/{id}`: a job's events as SSE, from the beginning or from where `Last-Event-ID` says, to the last one.

For programs with a key, and for the pages of people who are signed in: an EventSource can't send a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import Any

import redis
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from inference.gateway.authenticate import authenticate
from inference.gateway.call import Call
from inference.gateway.directory import Key
from inference.gateway.errors import GatewayError, InvalidKey, InvalidRequest
from inference.gateway.exchange import Exchange, Scope
from inference.gateway.runtime import Runtime
from inference.gateway.sse import KEEP_ALIVE
from inference.page_origin import host_of, is_allowed
from jobs import events
from jobs.database import in_database
from jobs.errors import ForeignPage, TooManyWatchers, UnknownObject
from jobs.models import Job
from jobs.shapes import job_shape
from jobs.visible import find_visible, storable

# The database is looked at when a stream has been silent for so long: its end may have got lost.
IDLE_S = 2.0
RECHECK_S = 5.0  # a revoked key, or a membership that has ended, watches no longer
BATCH = 500  # events per read
RETRY_AFTER_S = 5

FROM_THE_START = (0, 0)
_EVENT_ID = re.compile(r"([0-9]{1,19})-([0-9]{1,19})", re.ASCII)

_watchers = 0  # of this process


async def admit_watcher(scope: Scope, runtime: Runtime, path_params: Mapping[str, str]) -> Key:
    """The key that came, or for a person's session one that may see just this job. Raises InvalidKey, ForeignPage.

    To a person who may not see the job, it is one that doesn't exist.
    """
    headers = dict(scope["headers"])
    if b"authorization" in headers or b"cookie" not in headers:
        return await authenticate(scope["headers"], runtime.live)
    _refuse_foreign_pages(scope, headers)
    session_key = _session_key(headers[b"cookie"])
    if session_key is None:
        raise InvalidKey(given=False)
    tenant = await in_database(partial(_tenant_for, session_key, path_params["id"]))
    return Key(tenant=tenant, name="session", prefix="", digest="", expires_at=None)


def _refuse_foreign_pages(scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    """A browser sends cookies along from any page."""
    origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
    if origin is not None and not is_allowed(origin.decode("latin-1"), host_of(scope)):
        raise ForeignPage
    if site is not None and site not in (b"same-origin", b"none"):
        raise ForeignPage


def _session_key(cookies: bytes) -> str | None:
    try:
        morsel = SimpleCookie(cookies.decode("latin-1")).get(settings.SESSION_COOKIE_NAME)
    except CookieError:
        return None
    return morsel.value if morsel is not None and "\0" not in morsel.value else None


def _tenant_for(session_key: str, job_id: str) -> str:
    """The slug of the job's tenant, empty where the person isn't a member of it. Raises InvalidKey."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if not user.is_authenticated:
        raise InvalidKey(given=False)
    job = Job.objects.visible_to(user).filter(public_id=storable(job_id)).select_related("tenant").first()
    return job.tenant.slug if job is not None else ""


async def watch_job(call: Call) -> None:
    global _watchers
    exchange, asked = call.exchange, call.path_params["id"]
    after = _last_event_id(exchange.scope)
    job = await in_database(partial(find_visible, call.key, asked))
    if job is None:
        raise UnknownObject("job", asked)
    if _watchers >= settings.JOBS_MAX_WATCHERS:
        raise TooManyWatchers(RETRY_AFTER_S)
    _watchers += 1
    try:
        async with exchange.while_client_listens(), contextlib.aclosing(events.open_redis()) as client:
            if after != FROM_THE_START and job.has_ended and await _has_seen_all(client, job, after):
                # An EventSource comes back after every end; this tells it not to.
                await exchange.start(204, "text/event-stream; charset=utf-8", {})
                await exchange.finish()
                return
            await exchange.start(200, "text/event-stream; charset=utf-8", {})
            async with exchange.kept_alive(KEEP_ALIVE):
                last = await _Watch(call, job, client, after).follow()
            await exchange.finish(last)
    finally:
        _watchers -= 1


def _last_event_id(scope: Scope) -> tuple[int, int]:
    """Raises InvalidRequest."""
    text = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
    if not text:
        return FROM_THE_START
    if (match := _EVENT_ID.fullmatch(text)) is None or max(map(int, match.groups())) >= 2**63:
        raise InvalidRequest("'Last-Event-ID' must be the id of an event of this stream.", param="Last-Event-ID")
    return int(match[1]), int(match[2])


async def _has_seen_all(client: Any, job: Job, after: tuple[int, int]) -> bool:
    with contextlib.suppress(redis.RedisError):
        for event_id, fields in await client.xrevrange(events.stream_key(job.public_id), count=1):
            return fields[b"type"].decode() in Job.ENDED and _parse_id(event_id) <= after
    return False


def _parse_id(event_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = event_id.partition(b"-")
    return int(milliseconds), int(number)


class _Watch:
    """One client and one job, from the event after `after` on."""

    def __init__(self, call: Call, job: Job, client: Any, after: tuple[int, int]) -> None:
        self._call = call
        self._exchange: Exchange = call.exchange
        self._job = job
        self._client = client
        self._after = "{}-{}".format(*after).encode()
        self._now_s = asyncio.get_running_loop().time
        self._checked_s = self._now_s()

    async def follow(self) -> bytes:
        """Sends events as they come; returns the last one."""
        told_end = False
        while True:
            try:
                found = await self._read()
            except redis.RedisError:
                # The row is the truth; the next round trip may find Valkey again.
                await asyncio.sleep(0 if told_end else IDLE_S)
                found = []
            out: list[bytes] = []
            for event_id, fields in found:
                self._after = event_id
                event = _write(fields[b"type"], fields[b"data"], event_id)
                if fields[b"type"].decode() in Job.ENDED:
                    return b"".join([*out, event])
                out.append(event)
            if out:
                await self._exchange.write(b"".join(out))
            try:
                await self._recheck()
                if found:
                    continue
                job = await in_database(partial(find_visible, self._call.key, self._job.public_id))
            except GatewayError as error:
                return _write(b"error", error.body())
            if job is None:
                return _write(b"error", UnknownObject("job", self._job.public_id).body())
            if job.has_ended:
                if told_end:
                    return _write(job.state.encode(), events.dump(job_shape(job)).encode())
                # Its end never reached the stream, or the stream has expired. The fence keeps it from having two.
                await asyncio.to_thread(events.append, job, job.state, job_shape(job))
                told_end = True

    async def _read(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        streams = await self._client.xread(
            {events.stream_key(self._job.public_id): self._after}, count=BATCH, block=int(IDLE_S * 1000)
        )
        return streams[0][1] if streams else []

    async def _recheck(self) -> None:
        """Raises GatewayError when whoever watches may no longer."""
        if self._now_s() - self._checked_s < RECHECK_S:
            return
        self._checked_s = self._now_s()
        call = self._call
        key = await admit_watcher(call.exchange.scope, call.runtime, call.path_params)
        if key.tenant != call.key.tenant or "inference" not in key.scopes:
            raise InvalidKey(given=True)


def _write(type: bytes, data: bytes, event_id: bytes | None = None) -> bytes:
    head = b"id: " + event_id + b"\n" if event_id is not None else b""
    return head + b"event: " + type + b"\ndata: " + data + b"\n\n"
