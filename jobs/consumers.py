"""A job's events over a websocket, for pages: what `/events/{id}` tells, from the same feed (jobs/feeds.py).

    → {"type": "watch", "job": "job_…", "after": "1764579600000-0"}     after is the last id that was seen, or left out
    ← {"job": "job_…", "id": "1764579600123-0", "type": "delta", "data": {"index": 0, "text": "…"}}
    ← {"job": "job_…", "type": "error", "data": {"error": {…}}}          nothing more comes of this job
    → {"type": "leave", "job": "job_…"}

One socket watches several jobs. Whose they are is looked up when one begins to watch and every few seconds after,
because a socket outlives sign-outs and memberships.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from importlib import import_module
from typing import Any

import structlog
from channels.auth import get_user
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from inference.consumers import SIGNED_OUT, TOO_MANY_SOCKETS
from inference.gateway.errors import GatewayError, InvalidRequest
from jobs import feeds
from jobs.database import in_database
from jobs.errors import TooManyWatchers, UnknownObject
from jobs.models import Job
from jobs.visible import storable
from jobs.watching import RECHECK_S, RETRY_AFTER_S, counted, parse_event_id

log = structlog.get_logger("jobs")

MAX_SOCKETS_PER_USER = 8  # of one process, as for the playground
MAX_JOBS_PER_SOCKET = 20
MAX_FRAME_CHARS = 1000

_open_sockets: Counter[int] = Counter()


class JobConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One open socket."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counted_for: int | None = None
        self._watching: dict[str, asyncio.Task[None]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Whatever ends the socket ends its watching too."""

        async def send_while_open(message: Any) -> None:
            with contextlib.suppress(OSError):  # ASGI's word for a client that has gone
                await send(message)

        try:
            await super().__call__(scope, receive, send_while_open)
        finally:
            for task in self._watching.values():
                task.cancel()
            if self._counted_for is not None:
                _open_sockets[self._counted_for] -= 1

    async def connect(self) -> None:
        # A refused handshake has no code that a page could read, so refusals are closes right after it.
        await self.accept()
        user = self.scope["user"]
        if not user.is_authenticated:
            await self.close(SIGNED_OUT)
        elif _open_sockets[user.pk] >= MAX_SOCKETS_PER_USER:
            await self.close(TOO_MANY_SOCKETS)
        else:
            _open_sockets[user.pk] += 1
            self._counted_for = user.pk

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._counted_for is None:
            return
        try:
            message = _parse(text_data)
        except InvalidRequest as error:
            await self._tell("", "error", {"error": error.as_dict()})
            return
        job_id = message["job"]
        if (known := self._watching.pop(job_id, None)) is not None:
            known.cancel()
            await asyncio.wait({known})
        if message["type"] == "watch":
            if len(self._watching) >= MAX_JOBS_PER_SOCKET:
                await self._tell(job_id, "error", {"error": TooManyWatchers(RETRY_AFTER_S).as_dict()})
                return
            watching = asyncio.create_task(self._watch(job_id, message["after"]), name=f"job-socket-{job_id}")
            self._watching[job_id] = watching

    async def _watch(self, job_id: str, after: feeds.Id) -> None:
        try:
            with counted():
                job = await self._find(job_id)
                async with feeds.watching(job) as feed:
                    await self._follow(job_id, feed, after)
        except GatewayError as error:
            await self._tell(job_id, "error", {"error": error.as_dict()})
        except Exception as error:
            log.error("watching a job failed", job=job_id, error=repr(error))
            failure = GatewayError("Something went wrong on our side.")
            await self._tell(job_id, "error", {"error": failure.as_dict()})
        finally:
            if self._watching.get(job_id) is asyncio.current_task():
                del self._watching[job_id]

    async def _follow(self, job_id: str, feed: feeds.Feed, after: feeds.Id) -> None:
        """Raises UnknownObject once the person may not see the job any more."""
        now_s = asyncio.get_running_loop().time
        checked_s = now_s()
        async with contextlib.aclosing(feed.follow(after, RECHECK_S)) as batches:
            async for batch in batches:
                for told in batch:
                    await self._tell(job_id, told.type, json.loads(told.data), told.id)
                if now_s() - checked_s >= RECHECK_S:
                    checked_s = now_s()
                    await self._find(job_id)
        if feed.gone:
            raise UnknownObject("job", job_id)

    async def _find(self, job_id: str) -> Job:
        """Raises UnknownObject, also where the person has signed out. Closes the socket then."""
        user = await self._current_user()
        if not user.is_authenticated:
            await self.close(SIGNED_OUT)
            raise UnknownObject("job", job_id)
        visible = Job.objects.visible_to(user).filter(public_id=storable(job_id))
        job = await in_database(visible.first)
        if job is None:
            raise UnknownObject("job", job_id)
        return job

    async def _current_user(self) -> AbstractBaseUser | AnonymousUser:
        """Whose session this still is: read again, with the password check that a page request makes."""
        store = import_module(settings.SESSION_ENGINE).SessionStore
        session = store(self.scope["session"].session_key)
        user: AbstractBaseUser | AnonymousUser = await get_user({**self.scope, "session": session})
        return user

    async def _tell(self, job_id: str, type: str, data: Any, id: feeds.Id | None = None) -> None:
        named = {"id": "{}-{}".format(*id)} if id is not None else {}
        await self.send(text_data=json.dumps({"job": job_id, **named, "type": type, "data": data}))


def _parse(text: str | None) -> dict[str, Any]:
    """A message with `type`, `job` and `after`. Raises InvalidRequest."""
    expected = 'A message is {"type": "watch" or "leave", "job": "job_…", "after": the id of an event}.'
    if text is None or len(text) > MAX_FRAME_CHARS:
        raise InvalidRequest(expected)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(expected) from None
    if not isinstance(said, dict) or said.get("type") not in ("watch", "leave") or not isinstance(said.get("job"), str):
        raise InvalidRequest(expected)
    after = said.get("after")
    if after is not None and not isinstance(after, str):
        raise InvalidRequest(expected)
    return {"type": said["type"], "job": said["job"], "after": parse_event_id(after or "", "after")}
