"""What a worker runs next. A message from the queue only rings; the jobs of each tenant are taken one after another.

A tenant that has jobs waiting has a taker here, which waits for its turn (jobs/slots.py), claims the tenant's oldest
job and runs it beside the others. So a worker is as fair with two tenants as with two thousand, and a job that waits
for an engine or a limit takes no place that others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

import structlog
from django.conf import settings

from inference.gateway.errors import EngineUnavailable
from jobs import events, services
from jobs.database import in_database
from jobs.leases import Leases
from jobs.models import Job
from jobs.slots import FairSlots, Turn

log = structlog.get_logger("jobs")

# Held at once of one tenant's by a worker, those included that wait to ask again.
HELD_PER_TENANT: dict[str, int] = {Job.Kind.GENERATION: 64, Job.Kind.BATCH: 2}

CANCEL_AGAIN_S = 3.0
READERS = 2  # of whole files at once: each keeps a thread busy for seconds

Waiting = tuple[str, str]  # a tenant's slug and a kind of jobs


class Desk:
    """What jobs run with: places at the gateway, the leases of this worker's jobs, and Valkey."""

    def __init__(self) -> None:
        self.redis = events.open_redis()
        self.asking = FairSlots(settings.JOBS_CONCURRENCY, settings.JOBS_TENANT_CONCURRENCY)
        self.leases = Leases()
        self.reading = asyncio.Semaphore(READERS)


Run = Callable[[Job, Desk, Turn], Awaitable[None]]


class Dispatcher:
    """Belongs to one event loop. `run` has what runs each kind, to its end."""

    def __init__(self, run: dict[str, Run]) -> None:
        self._run = run
        self._desk = Desk()
        self._places = {kind: FairSlots(None, HELD_PER_TENANT[kind]) for kind in run}
        self._takers: dict[Waiting, asyncio.Task[None]] = {}
        self._rung: set[Waiting] = set()  # while its taker was about to find nothing more
        self._running: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._look_again = False
        self._closing: asyncio.Task[None] | None = None

    def ring(self) -> None:
        """There may be work. Whatever rings while the database is looked at has it looked at once more."""
        if self._closing is not None:
            return
        if self._looking is not None:
            self._look_again = True
        else:
            self._looking = asyncio.create_task(self._look(), name="jobs-look")

    async def idle(self) -> None:
        """Wait until there is nothing to do and nothing being done."""
        while tasks := self._tasks():
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Give up what runs, and have it given back to other workers."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="jobs-close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.sleep(0)  # a task that never began could give nothing back
        while tasks := self._tasks():
            for task in tasks:
                task.cancel()
            # Once is not enough: redis-py swallows a cancellation that meets it while it connects.
            await asyncio.wait(tasks, timeout=CANCEL_AGAIN_S)
        await self._desk.leases.close()
        await self._desk.redis.aclose()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {*self._takers.values(), *self._running, *({self._looking} if self._looking is not None else ())}

    async def _look(self) -> None:
        try:
            while True:
                self._look_again = False
                for waiting in await in_database(services.find_waiting):
                    if waiting[1] in self._run:
                        self._send_for(waiting)
                if not self._look_again:
                    return
        except EngineUnavailable as error:
            log.warning("jobs can't be looked for", error=error.message)  # the sweep rings again
        finally:
            self._looking = None

    def _send_for(self, waiting: Waiting) -> None:
        if waiting in self._takers:
            self._rung.add(waiting)
        else:
            self._takers[waiting] = asyncio.create_task(self._take(*waiting), name=f"jobs-take-{waiting[1]}")

    async def _take(self, tenant: str, kind: str) -> None:
        """Claim the tenant's jobs and have them run, until none is left."""
        places = self._places[kind]
        try:
            while True:
                await places.take(tenant)
                job, turn = None, Turn(self._desk.asking, tenant)
                try:
                    if kind != Job.Kind.BATCH:  # whose lines take turns of their own
                        await turn.take()
                    self._rung.discard((tenant, kind))
                    job = await self._claim(tenant, kind)
                finally:
                    if job is None:
                        turn.lay_down()
                        places.release(tenant)
                if job is not None:
                    self._running.add(asyncio.create_task(self._serve(job, turn), name=f"job-{job.public_id}"))
                elif (tenant, kind) not in self._rung:
                    return
        except EngineUnavailable as error:
            log.warning("no job can be taken", error=error.message)  # the sweep rings again
        finally:
            del self._takers[tenant, kind]

    async def _claim(self, tenant: str, kind: str) -> Job | None:
        claiming = asyncio.ensure_future(in_database(partial(services.claim_next, kind, tenant)))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # A thread can't be stopped: what it has claimed by now is nobody's here.
            if (job := await claiming) is not None:
                await in_database(partial(services.give_back, job))
            raise

    async def _serve(self, job: Job, turn: Turn) -> None:
        try:
            await self._run[job.kind](job, self._desk, turn)
        except Exception as error:
            # Nothing was finished: its lease runs out and it is taken again, here or elsewhere.
            log.error("a job was let go of", job=job.public_id, error=repr(error))
        finally:
            turn.lay_down()
            self._places[job.kind].release(job.tenant.slug)
            self._running.remove(cast("asyncio.Task[None]", asyncio.current_task()))
