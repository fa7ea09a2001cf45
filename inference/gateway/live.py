"""The Directory, kept current.

Three things refresh it: a message on the Redis channel that every committed change is announced on (milliseconds),
a timer (so a lost message costs half a minute, and a lost Redis one second), and a lookup that missed, which waits for
a picture taken after it asked, so that a key works the moment it is issued even when nothing was announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Set

import structlog
from django.db import Error as DatabaseError
from redis.asyncio import Redis
from redis.exceptions import RedisError

from inference.gateway.cancelling import cancel
from inference.gateway.directory import Directory, Revision
from inference.gateway.errors import EngineUnavailable
from inference.gateway.loading import ALL_KINDS, DirectoryLoader
from personas.changes import CHANNEL, Kind

log = structlog.get_logger("gateway")

# Reloads that follow each other keep this distance, and rest twice as long as they took: a flood of unknown keys
# costs a bounded share of a core, and a revocation still takes effect within a second.
MIN_PAUSE_S = 0.1
PAUSE_PER_LOAD = 2.0
RELOAD_EVERY_S = 30.0
RELOAD_EVERY_WHILE_DEAF_S = 1.0
PING_EVERY_S = 5.0

MAX_PINNED_REVISIONS = 1024


class LiveDirectory:
    """Belongs to one event loop. `current` is always a whole picture, at worst an old one."""

    def __init__(self, redis_url: str) -> None:
        self.current = Directory()
        self._redis_url = redis_url
        self._loader = DirectoryLoader()
        self._pinned: OrderedDict[tuple[str, str, int], Revision] = OrderedDict()
        self._stale: set[Kind] = set(ALL_KINDS)
        self._reloading = asyncio.Lock()
        self._upcoming: asyncio.Task[None] | None = None
        self._earliest_s = 0.0
        self._hears_changes = False
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Takes the first picture and begins to follow changes. A database that is away is tried again later."""
        self._background = [
            asyncio.create_task(self._follow_changes(), name="gateway-changes"),
            asyncio.create_task(self._reload_regularly(), name="gateway-reload"),
        ]
        with contextlib.suppress(EngineUnavailable):
            await self.refreshed()

    async def stop(self) -> None:
        await cancel(*self._background, *([self._upcoming] if self._upcoming else []))

    async def refreshed(self, kinds: Set[Kind] = ALL_KINDS) -> Directory:
        """A picture whose `kinds` were read after this call. Raises EngineUnavailable when they can't be read."""
        try:
            await asyncio.shield(self._refresh(kinds))
        except DatabaseError as error:
            raise EngineUnavailable("The gateway can't read its database at the moment.") from error
        return self.current

    async def revision(self, tenant: str, persona: str, number: int) -> Revision | None:
        """A revision by number. None when the persona isn't published or never had that many."""
        known = self.current.personas.get((tenant, persona))
        if known is None or number > known.newest:
            return None
        if number == known.published.number:
            return known.published
        address = (tenant, persona, number)
        if (pinned := self._pinned.get(address)) is None:
            try:
                pinned = await asyncio.to_thread(self._loader.load_revision, *address)
            except DatabaseError as error:
                raise EngineUnavailable("The gateway can't read its database at the moment.") from error
            if pinned is None:
                return None
            self._pinned[address] = pinned
            if len(self._pinned) > MAX_PINNED_REVISIONS:
                self._pinned.popitem(last=False)
        return pinned

    def _refresh(self, kinds: Set[Kind]) -> asyncio.Task[None]:
        """The next reload that has not begun to read yet; everybody who asks until then shares it."""
        self._stale |= kinds
        if self._upcoming is None:
            self._upcoming = asyncio.create_task(self._reload(), name="gateway-reload-once")
            self._upcoming.add_done_callback(_log_failure)
        return self._upcoming

    async def _reload(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._reloading:
            await asyncio.sleep(max(0.0, self._earliest_s - loop.time()))
            kinds, self._stale, self._upcoming = self._stale, set(), None
            began_s = loop.time()
            try:
                self.current = await asyncio.to_thread(self._loader.load, kinds, self.current)
                if kinds & {"tenant", "persona"}:
                    self._pinned.clear()  # a persona may have been made anew under a name that had another
            except BaseException:
                self._stale |= kinds
                raise
            finally:
                took_s = loop.time() - began_s
                self._earliest_s = loop.time() + max(MIN_PAUSE_S, PAUSE_PER_LOAD * took_s)

    async def _reload_regularly(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY_S if self._hears_changes else RELOAD_EVERY_WHILE_DEAF_S)
            with contextlib.suppress(Exception):  # _log_failure has logged it
                await asyncio.shield(self._refresh(ALL_KINDS))

    async def _follow_changes(self) -> None:
        while True:
            try:
                await self._hear_changes()
            except (RedisError, OSError) as error:
                if self._hears_changes:
                    log.warning("changes are not heard; reading again every second", error=str(error))
            finally:
                self._hears_changes = False
            await asyncio.sleep(RELOAD_EVERY_WHILE_DEAF_S)

    async def _hear_changes(self) -> None:
        async with (
            Redis.from_url(
                self._redis_url,
                socket_connect_timeout=PING_EVERY_S,
                health_check_interval=PING_EVERY_S,
            ) as redis,
            redis.pubsub(ignore_subscribe_messages=True) as channel,
        ):
            await channel.subscribe(CHANNEL)
            self._hears_changes = True
            self._refresh(ALL_KINDS)  # whatever changed while nobody listened
            while True:
                message = await channel.get_message(timeout=PING_EVERY_S)
                if message is not None:
                    self._refresh(kinds_in(message["data"]))


def kinds_in(message: bytes) -> Set[Kind]:
    """What a message on the channel says has changed; everything, when it can't be understood."""
    try:
        kind = json.loads(message)["kind"]
    except (ValueError, TypeError, KeyError):
        return ALL_KINDS
    return {kind} if kind in ALL_KINDS else ALL_KINDS


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("directory not refreshed", error=repr(error))
