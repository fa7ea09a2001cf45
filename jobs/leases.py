"""Which jobs are this worker's: one look at the database for all of them, twice a second.

A cancellation is noticed by it, and a job that another worker has taken over is let go of. Leases are renewed on the
way; while the database is away nobody else can take a job either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

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

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self) -> None:
        now_s = asyncio.get_running_loop().time
        renewed_s = now_s()
        while self._held:
            await asyncio.sleep(LOOK_EVERY_S)
            held = [job for job, _ in self._held.values()]
            with contextlib.suppress(EngineUnavailable):
                states = await in_database(partial(services.look_at_leases, held))
                for job in held:
                    known, over = self._held.get(job.pk, (None, None))
                    if known is job and over is not None and not over.done() and states[job.pk] != "held":
                        over.set_result(states[job.pk])
                if now_s() - renewed_s >= services.lease().total_seconds() / 3:
                    await in_database(partial(services.renew_leases, held))
                    renewed_s = now_s()
