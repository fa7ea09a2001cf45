"""`GET /events/{id}`: a job's events as SSE, from the beginning or from where `Last-Event-ID` says, to the last one.

For programs with a key, and for the pages of people who are signed in: an EventSource can't send a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from http.cookies import CookieError, SimpleCookie
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from inference.gateway.authenticate import authenticate
from inference.gateway.call import Call
from inference.gateway.directory import Key
from inference.gateway.errors import GatewayError, InvalidKey, InvalidRequest
from inference.gateway.exchange import Scope
from inference.gateway.runtime import Runtime
from inference.gateway.sse import KEEP_ALIVE
from inference.page_origin import host_of, is_allowed
from jobs import feeds
from jobs.database import in_database
from jobs.errors import ForeignPage, TooManyWatchers, UnknownObject
from jobs.models import Job
from jobs.visible import find_visible, storable

RECHECK_S = 5.0  # a revoked key, or a membership that has ended, watches no longer
RETRY_AFTER_S = 5
CONTENT_TYPE = "text/event-stream; charset=utf-8"

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
    exchange, asked = call.exchange, call.path_params["id"]
    asked_after = dict(exchange.scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
    after = parse_event_id(asked_after, "Last-Event-ID")
    job = await in_database(partial(find_visible, call.key, asked))
    if job is None:
        raise UnknownObject("job", asked)
    with counted():
        async with exchange.while_client_listens(), feeds.watching(job) as feed:
            if after != feeds.FROM_THE_START and job.has_ended and await _has_seen_all(feed, after):
                # An EventSource comes back after every end; this tells it not to.
                await exchange.start(204, CONTENT_TYPE, {})
                await exchange.finish()
                return
            await exchange.start(200, CONTENT_TYPE, {})
            async with exchange.kept_alive(KEEP_ALIVE):
                last = await _follow(call, feed, after)
            await exchange.finish(last)


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """One more who watches. Raises TooManyWatchers."""
    global _watchers
    if _watchers >= settings.JOBS_MAX_WATCHERS:
        raise TooManyWatchers(RETRY_AFTER_S)
    _watchers += 1
    try:
        yield
    finally:
        _watchers -= 1


def parse_event_id(text: str, param: str) -> feeds.Id:
    """What `text` names; nothing stands for the time before the first event. Raises InvalidRequest."""
    if not text:
        return feeds.FROM_THE_START
    if (match := _EVENT_ID.fullmatch(text)) is None or max(map(int, match.groups())) >= 2**63:
        raise InvalidRequest(f"'{param}' must be the id of an event of this stream.", param=param)
    return int(match[1]), int(match[2])


async def _has_seen_all(feed: feeds.Feed, after: feeds.Id) -> bool:
    await feed.caught_up()
    return feed.end is not None and feed.end.id is not None and feed.end.id <= after


async def _follow(call: Call, feed: feeds.Feed, after: feeds.Id) -> bytes:
    """Sends events as they come; returns what is to be sent last."""
    now_s = asyncio.get_running_loop().time
    checked_s = now_s()
    async with contextlib.aclosing(feed.follow(after, RECHECK_S)) as batches:
        async for batch in batches:
            written = b"".join(told.as_sse() for told in batch)
            if batch and batch[-1].is_last:
                return written
            if written:
                await call.exchange.write(written)
            if now_s() - checked_s >= RECHECK_S:
                checked_s = now_s()
                try:
                    await _recheck(call)
                except GatewayError as error:
                    return _as_error(error)
    if feed.gone:
        return _as_error(UnknownObject("job", call.path_params["id"]))
    return b""


def _as_error(error: GatewayError) -> bytes:
    return feeds.Told(None, "error", error.body()).as_sse()


async def _recheck(call: Call) -> None:
    """Raises GatewayError when whoever watches may no longer."""
    key = await admit_watcher(call.exchange.scope, call.runtime, call.path_params)
    if key.tenant != call.key.tenant or "inference" not in key.scopes:
        raise InvalidKey(given=True)
