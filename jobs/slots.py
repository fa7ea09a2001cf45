"""Places that tenants take turns at: whoever holds the fewest is next, and of those who had no turn for longest.

Two things are shared so in a worker: requests at the gateway (a single answer takes one while it is asked, a batch one
for each line), and how many jobs of a tenant are held at all. Nobody waits behind somebody else's thousand: each tenant
has a queue of its own, and the queues take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator


class FairSlots:
    """Belongs to one event loop. `total` None: only each tenant's share is bounded."""

    def __init__(self, total: int | None, per_tenant: int) -> None:
        self.held: Counter[str] = Counter()
        self._total = total
        self._per_tenant = per_tenant
        self._taken = 0
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._turns = 0
        self._last_turn: dict[str, int] = {}  # of each tenant that ever had one

    async def take(self, tenant: str, *, ahead: bool = False) -> None:
        """Wait for a place. `ahead`: before what else of this tenant's waits, never before others."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(tenant, deque())
        queue.appendleft(granted) if ahead else queue.append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(tenant)
            else:
                self._forget(tenant, granted)
            raise

    def release(self, tenant: str) -> None:
        self._taken -= 1
        self.held[tenant] -= 1
        if not self.held[tenant]:
            del self.held[tenant]
        self._grant()

    @contextlib.asynccontextmanager
    async def holding(self, tenant: str) -> AsyncIterator[None]:
        await self.take(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def _grant(self) -> None:
        while self._total is None or self._taken < self._total:
            able = [tenant for tenant in self._waiting if self.held[tenant] < self._per_tenant]
            if not able:
                return
            tenant = min(able, key=lambda tenant: (self.held[tenant], self._last_turn.get(tenant, 0)))
            granted = self._waiting[tenant].popleft()
            if not self._waiting[tenant]:
                del self._waiting[tenant]
            if not granted.done():
                self._turns += 1
                self._last_turn[tenant] = self._turns
                self._taken += 1
                self.held[tenant] += 1
                granted.set_result(None)

    def _forget(self, tenant: str, granted: asyncio.Future[None]) -> None:
        queue = self._waiting.get(tenant, deque())
        with contextlib.suppress(ValueError):
            queue.remove(granted)
        if not queue:
            self._waiting.pop(tenant, None)


class Turn:
    """One request's place among those that are at the gateway, laid down while it only waits to ask again."""

    def __init__(self, slots: FairSlots, tenant: str) -> None:
        self._slots = slots
        self._tenant = tenant
        self._taken = False

    async def take(self) -> None:
        if not self._taken:
            await self._slots.take(self._tenant, ahead=True)
            self._taken = True

    def lay_down(self) -> None:
        if self._taken:
            self._taken = False
            self._slots.release(self._tenant)
