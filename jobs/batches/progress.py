"""How far a batch is: counts on its row, and events for whoever watches, once they are true even after a crash."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from typing import Any

import redis
import structlog
from redis.asyncio import Redis as AsyncRedis

from inference.gateway.errors import EngineUnavailable
from jobs import events
from jobs.batches import services
from jobs.batches.results import Results
from jobs.database import in_database
from jobs.models import Batch, Job
from jobs.shapes import job_shape, progress_shape

log = structlog.get_logger("jobs")

# Ever more rarely, so that a day of it doesn't outgrow events.MAX_EVENTS.
EVERY_S = 1.0
EVERY_S_AFTER = ((4000, 30.0), (2000, 5.0))
RATE_OVER_S = 60.0


class LeaseLost(Exception):
    """Another worker has the batch, or it has ended: nothing more may be said about it."""


class Progress:
    """Belongs to one attempt at a batch."""

    def __init__(self, job: Job, batch: Batch, client: AsyncRedis) -> None:
        self._job = job
        self._batch = batch
        self._client = client
        self._counts = {"total": 0, "completed": 0, "failed": 0}
        self._rate: float | None = None
        self._seen: deque[tuple[float, int]] = deque()  # when, and how many were done
        self._events = 0

    def count(self, results: Results) -> None:
        self._counts = {"total": len(results), "completed": results.completed, "failed": results.failed}

    async def tell_start(self) -> None:
        """Raises LeaseLost."""
        await self._tell("started", job_shape(self._job))

    async def begin_asking(self) -> None:
        """Raises LeaseLost, EngineUnavailable."""
        self._see()
        await self._note(services.begin_asking)
        await self._tell_progress()

    async def begin_finalizing(self) -> None:
        """Raises LeaseLost, EngineUnavailable."""
        await self._note(services.begin_finalizing)
        await self._tell_progress()

    async def tell_regularly(self, results: Results) -> None:
        """Raises LeaseLost, OSError."""
        while True:
            await asyncio.sleep(next((pause for many, pause in EVERY_S_AFTER if self._events > many), EVERY_S))
            before = self._counts
            self.count(results)
            self._see()
            if self._counts == before:
                continue
            await asyncio.to_thread(results.sync)
            with contextlib.suppress(EngineUnavailable):  # the next time will do
                await self._note(partial(services.note_counts, rate=self._rate))
            await self._tell_progress()

    def _see(self) -> None:
        """What was done in the last minute, per second."""
        now_s, done = asyncio.get_running_loop().time(), self._counts["completed"] + self._counts["failed"]
        self._seen.append((now_s, done))
        while len(self._seen) > 2 and self._seen[1][0] < now_s - RATE_OVER_S:
            self._seen.popleft()
        then_s, then_done = self._seen[0]
        self._rate = (done - then_done) / (now_s - then_s) if now_s > then_s else None

    async def _note(self, change: Any) -> None:
        if not await in_database(partial(change, self._batch, self._job, **self._counts)):
            raise LeaseLost

    async def _tell_progress(self) -> None:
        done = self._counts["completed"] + self._counts["failed"]
        shape = progress_shape(done, self._counts["total"], self._rate)
        await self._tell("progress", {**shape, "failed": self._counts["failed"]})

    async def _tell(self, type: str, data: dict[str, Any]) -> None:
        self._events += 1
        try:
            if await events.append_async(self._client, self._job, type, data) == "refused":
                raise LeaseLost
        except redis.RedisError as error:
            log.warning("job event not stored", job=self._job.public_id, error=str(error))
