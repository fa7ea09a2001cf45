"""Which jobs are this worker's: one look at the database for all of them, twice a second.

A cancellation is noticed by it, and a job that another worker has taken over is let go of. Leases are renewed on the
way; while the database is away nobody else can take a job either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from inference.gateway.cancelling import cancel
from inference.gateway.errors import EngineUnavailable
from jobs import services
from jobs.database import in_database
from jobs.models import Job

LOOK_EVERY_S = 0.5  # a cancellation is noticed within it


class Leases:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Job, asyncio.Future[services.LeaseState]]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._at_database = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def holding(self, job: Job) -> AsyncIterator[asyncio.Future[services.LeaseState]]:
        """Keeps the lease of a job that this worker has claimed; the future says why it should be let go of."""
        over: asyncio.Future[services.LeaseState] = asyncio.get_running_loop().create_future()
        self._held[job.pk] = job, over
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="jobs-leases")
        try:
            yield over
        finally:
            if self._held.get(job.pk, (None, None))[1] is over:  # else this worker has it anew
                del self._held[job.pk]
            over.cancel()

    async def give_back(self, job: Job, work: asyncio.Task[Any]) -> None:
        """End the work at a job, and let the next worker have it at once."""
        await cancel(work)
        self._held.pop(job.pk, None)
        async with self._at_database:  # or a renewal under way would take it back
            await in_database(partial(services.give_back, job))

    async def close(self) -> None:
        if self._looking is not None:
            await cancel(self._looking)

    async def _look(self) -> None:
        renewed_s = asyncio.get_running_loop().time()
        while self._held:
            await asyncio.sleep(LOOK_EVERY_S)
            with contextlib.suppress(EngineUnavailable):
                async with self._at_database:
                    renewed_s = await self._look_once(renewed_s)

    async def _look_once(self, renewed_s: float) -> float:
        """Returns when the leases were last renewed."""
        held = [job for job, _ in self._held.values()]
        states = await in_database(partial(services.look_at_leases, held))
        for job in held:
            known, over = self._held.get(job.pk, (None, None))
            if known is job and over is not None and not over.done() and states[job.pk] != "held":
                over.set_result(states[job.pk])
        now_s = asyncio.get_running_loop().time()
        if now_s - renewed_s >= services.lease().total_seconds() / 3:
            await in_database(partial(services.renew_leases, held))
            renewed_s = now_s
        return renewed_s
