"""What the gateway keeps between requests, per event loop: the live directory and the connections to engines."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from django.conf import settings

from inference.gateway.compose import derive_cache_salt
from inference.gateway.fleet import Fleet
from inference.gateway.live import LiveDirectory
from inference.gateway.metering import Metering


class Runtime:
    """Opened by the first who needs it and closed by the server's shutdown."""

    def __init__(self) -> None:
        self.live = LiveDirectory(settings.REDIS_URL)
        self.fleet = Fleet(self.live)
        self.metering = Metering(self.live, settings.REDIS_URL)
        self._salts: dict[str, str] = {}

    async def open(self) -> None:
        await self.live.start()

    async def close(self) -> None:
        await self.live.stop()
        await self.fleet.close()
        await self.metering.close()

    def cache_salt(self, tenant: str) -> str:
        if (salt := self._salts.get(tenant)) is None:
            salt = self._salts[tenant] = derive_cache_salt(settings.SECRET_KEY, tenant)
        return salt


_runtimes: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Runtime]] = WeakKeyDictionary()


async def current_runtime() -> Runtime:
    """This event loop's runtime, with its first picture taken."""
    loop = asyncio.get_running_loop()
    if (opening := _runtimes.get(loop)) is None:
        opening = _runtimes[loop] = loop.create_task(_open(), name="gateway-open")
    return await asyncio.shield(opening)


async def close_runtime() -> None:
    """Close this event loop's runtime, if it was ever needed."""
    if (opening := _runtimes.pop(asyncio.get_running_loop(), None)) is not None:
        await (await opening).close()


async def _open() -> Runtime:
    runtime = Runtime()
    await runtime.open()
    return runtime
