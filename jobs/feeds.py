"""The events of the jobs that this process's clients watch, each read from Valkey once, however many watch it.

Every append rings on one channel (jobs/events.py), which is listened to once per process; a feed then reads what is new
in its job's stream and keeps the latest of it. A watcher has a cursor, the id of the event it saw last: it takes what
comes after it, from the feed or, where it is further behind, from the stream itself. So nothing is missed or doubled,
however often it comes back, and a slow watcher holds up nobody.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import redis
from django.conf import settings
from redis.asyncio import BlockingConnectionPool
from redis.asyncio import Redis as AsyncRedis

from inference.gateway.errors import EngineUnavailable
from jobs import events
from jobs.database import in_database
from jobs.models import Job
from jobs.shapes import job_shape

# The database is looked at when a stream has been silent for so long: its end may have got lost.
IDLE_S = 2.0
LISTEN_AGAIN_S = 1.0
PER_READ = 500  # events
KEPT = 1000  # events of a job, for all who watch it
CONNECTIONS = 4

Id = tuple[int, int]
FROM_THE_START: Id = (0, 0)


@dataclass(frozen=True, slots=True)
class Told:
    """One event. `id` None: made of the row, because the stream is out of reach."""

    id: Id | None
    type: str
    data: bytes

    @property
    def is_last(self) -> bool:
        return self.type in Job.ENDED

    def as_sse(self) -> bytes:
        head = b"id: %d-%d\n" % self.id if self.id is not None else b""
        return head + b"event: " + self.type.encode() + b"\ndata: " + self.data + b"\n\n"


class Feed:
    """One job, for all of this process who watch it."""

    def __init__(self, job: Job, client: AsyncRedis) -> None:
        self.watchers = 0
        self.end: Told | None = None  # the last event, once it has come
        self.gone = False  # the job was deleted
        self._job = job
        self._client = client
        self._kept: list[Told] = []
        self._ids: list[Id] = []  # of those
        self._floor = FROM_THE_START  # everything after it that there is, is kept
        self._last = FROM_THE_START
        self._rung = asyncio.Event()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._caught_up = asyncio.Event()
        self.reading = asyncio.create_task(self._read(), name=f"job-feed-{job.public_id}")

    def ring(self) -> None:
        self._rung.set()

    async def caught_up(self) -> None:
        """Wait until what was there when the feed began has been read, or can't be."""
        await self._caught_up.wait()

    async def follow(self, after: Id, pause_s: float) -> AsyncGenerator[list[Told], None]:
        """The events after `after` in order, up to the last one or the job's deletion; an empty list in each `pause_s`
        in which there are none."""
        cursor = after
        while True:
            changed = self._changed
            if cursor < self._floor:
                found = await self._older_than_kept(cursor)
            else:
                found = self._kept[bisect.bisect_right(self._ids, cursor) :]
            if not found and self.end is not None and self.end.id is None:
                found = [self.end]
            if not found and (self.end is not None or self.gone):
                return
            yield found
            if not found:
                await asyncio.wait({changed}, timeout=pause_s)
            elif found[-1].is_last:
                return
            else:
                cursor = found[-1].id or cursor

    async def _older_than_kept(self, cursor: Id) -> list[Told]:
        with contextlib.suppress(redis.RedisError):
            if found := await self._from_stream(cursor):
                return found
        return self._kept  # the stream has been cut, or is away

    async def _read(self) -> None:
        made_end = False
        while self.end is None and not self.gone:
            self._rung.clear()
            found: list[Told] = []
            with contextlib.suppress(redis.RedisError):
                found = await self._from_stream(self._last)
            if len(found) < PER_READ:
                self._caught_up.set()
            if found:
                self._keep(found)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if made_end else IDLE_S):
                    await self._rung.wait()
                continue
            made_end = await self._look_at_row(made_end)

    async def _look_at_row(self, made_end: bool) -> bool:
        """The row is the truth. Whether the stream has been given the end that it lacks."""
        try:
            job = await in_database(Job.objects.filter(pk=self._job.pk).first)
        except EngineUnavailable:
            return made_end
        if job is None:
            self.gone = True
            self._notify()
        elif job.has_ended and made_end:
            self.end = Told(None, job.state, events.dump(job_shape(job)).encode())
            self._notify()
        elif job.has_ended:
            # It never got there, or the stream has expired. The fence keeps it from having two.
            await asyncio.to_thread(events.append, job, job.state, job_shape(job))
            return True
        return False

    async def _from_stream(self, after: Id) -> list[Told]:
        """Raises redis.RedisError."""
        rows: Any = await self._client.xrange(
            events.stream_key(self._job.public_id), min="({}-{}".format(*after), count=PER_READ
        )
        return [Told(_parse_id(event_id), fields[b"type"].decode(), fields[b"data"]) for event_id, fields in rows]

    def _keep(self, found: list[Told]) -> None:
        self._kept += found
        self._ids += [told.id for told in found if told.id is not None]
        self._last = self._ids[-1]
        if (many := len(self._kept) - KEPT) > KEPT:
            self._floor = self._ids[many - 1]
            del self._kept[:many], self._ids[:many]
        if found[-1].is_last:
            self.end = found[-1]
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)


class _Feeds:
    """Those of one event loop. Listens while there are any."""

    def __init__(self) -> None:
        self._feeds: dict[str, Feed] = {}
        self._client: AsyncRedis | None = None
        self._listening: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def watching(self, job: Job) -> AsyncIterator[Feed]:
        if self._client is None:
            pool = BlockingConnectionPool.from_url(settings.REDIS_URL, max_connections=CONNECTIONS, **events.TIMEOUTS)
            self._client = AsyncRedis.from_pool(pool)
            self._listening = asyncio.create_task(self._listen(self._client), name="job-feeds")
        feed = self._feeds.get(job.public_id)
        if feed is None:
            feed = self._feeds[job.public_id] = Feed(job, self._client)
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1
            if not feed.watchers:
                await self._leave(job.public_id, feed)

    async def _leave(self, job_id: str, feed: Feed) -> None:
        if self._feeds.get(job_id) is feed:
            del self._feeds[job_id]
        closing = [feed.reading]
        client, listening = None, None
        if not self._feeds:
            client, self._client = self._client, None
            listening, self._listening = self._listening, None
        if listening is not None:
            closing.append(listening)
        await _end(closing)
        if client is not None:
            await client.aclose()

    async def _listen(self, client: AsyncRedis) -> None:
        while True:
            with contextlib.suppress(redis.RedisError, OSError):
                async with client.pubsub(ignore_subscribe_messages=True) as channel:
                    await channel.subscribe(events.CHANNEL)
                    for feed in self._feeds.values():
                        feed.ring()  # whatever came while nobody listened
                    while True:
                        message: dict[str, Any] | None = await channel.get_message(timeout=events.SILENCE_S)
                        if message is not None and (job_id := message["data"].decode()) in self._feeds:
                            self._feeds[job_id].ring()
            await asyncio.sleep(LISTEN_AGAIN_S)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    pending = {task for task in tasks if not task.done()}
    while pending:
        # Once is not enough: redis-py swallows a cancellation that meets it while it connects.
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=0.1)


def _parse_id(event_id: bytes) -> Id:
    milliseconds, _, number = event_id.partition(b"-")
    return int(milliseconds), int(number)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Feeds] = WeakKeyDictionary()


def watching(job: Job) -> contextlib.AbstractAsyncContextManager[Feed]:
    """The feed of a job, which lives as long as somebody watches it."""
    loop = asyncio.get_running_loop()
    if (feeds := _of_loop.get(loop)) is None:
        feeds = _of_loop[loop] = _Feeds()
    return feeds.watching(job)
