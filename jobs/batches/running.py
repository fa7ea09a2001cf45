"""One batch, run: its file checked, its requests asked side by side, its answers put in order.

What has been answered is kept line by line (jobs/batches/results.py), so whoever takes the batch over goes on where it
was left. Each request is asked as the key that made the batch, takes turns with everybody else's (jobs/slots.py), and
waits without a place where a limit or an engine is in the way. However a batch ends, what was answered is in its files.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Coroutine, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.utils import timezone

from inference.gateway.cancelling import cancel, unbroken
from inference.gateway.errors import EngineFailed, EngineUnavailable, InvalidRequest
from jobs import services as job_services
from jobs.asking import Pauses, Refused, ask_whole, key_of
from jobs.batches import results, services
from jobs.batches.input import Line, Requests
from jobs.batches.progress import LeaseLost, Progress
from jobs.database import in_database
from jobs.dispatching import Desk
from jobs.errors import JobFailed
from jobs.models import Batch, Job
from jobs.slots import Turn

MAX_ENGINE_FAILURES = 3  # of one request: it may be what the engine fails at
UNANSWERED = {
    "expired": ("batch_expired", "The batch expired before this request was answered."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was answered."),
    "failed": ("batch_failed", "The batch failed before this request was answered."),
    "done": ("internal_error", "This request was not answered."),
}


async def run(job: Job, desk: Desk, turn: Turn) -> None:
    """Run a batch that this worker has claimed, to its end.

    Cancelling gives it back: the next worker goes on with it. `turn` is not needed: each request takes its own.
    """
    batch = await in_database(partial(services.load_batch, job))
    async with desk.leases.holding(job) as over:
        running = _Running(job, batch, desk, over)
        work = asyncio.create_task(running.work(), name=f"batch-{batch.public_id}")
        try:
            await asyncio.wait({work})
            work.result()
        except LeaseLost:
            return
        except asyncio.CancelledError:
            running.stop_checking.set()
            await unbroken(desk.leases.give_back(job, work))
            raise
        finally:
            running.close()


class _Running:
    """A batch in this worker's hands; `over` says when it no longer should be."""

    def __init__(self, job: Job, batch: Batch, desk: Desk, over: asyncio.Future[job_services.LeaseState]) -> None:
        self.stop_checking = threading.Event()
        self._job = job
        self._batch = batch
        self._desk = desk
        self._over = over
        folder = results.folder_of(batch.public_id)
        self._requests = Requests(folder / results.INPUT, batch.endpoint)
        self._results = results.Results(folder, job.attempts)
        self._progress = Progress(job, batch, desk.redis)

    def close(self) -> None:
        self._requests.close()
        self._results.close()

    async def work(self) -> None:
        """Raises LeaseLost, EngineUnavailable, OSError."""
        await self._progress.tell_start()
        try:
            if await self._check() == "cancelled":
                await self._end(Job.State.CANCELLED)
                return
            if self._requests.errors:
                await self._refuse_input()
                return
            await asyncio.to_thread(self._results.open, len(self._requests))
            self._progress.count(self._results)
            await self._progress.begin_asking()
            await self._finish(await self._until_over(self._ask_all(), self._batch.expires_at))
        except JobFailed as failure:
            await self._finish("failed", failure)
        except FileNotFoundError:
            lost = JobFailed("input_missing", "The worker does not find the batch's input in its DATA_DIR.")
            await self._end(Job.State.FAILED, error=lost.as_json())

    async def _check(self) -> str:
        """ "done" or "cancelled"; one that was checked before has answers to hand out, and is checked in any case."""
        if self._batch.in_progress_at is None:
            return await self._until_over(self._read_input())
        await self._read_input()
        return "done"

    async def _read_input(self) -> None:
        async with self._desk.reading:
            await asyncio.to_thread(self._requests.check, self.stop_checking)

    async def _until_over(self, part: Coroutine[Any, Any, None], deadline: datetime | None = None) -> str:
        """How `part` ended: "done", "cancelled" or "expired". Raises LeaseLost, and what `part` does."""
        task = asyncio.ensure_future(part)
        left_s = max(0.0, (deadline - timezone.now()).total_seconds()) if deadline is not None else None
        try:
            ends: set[asyncio.Future[Any]] = {task, self._over}
            await asyncio.wait(ends, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
                return "done"
        finally:
            self.stop_checking.set()
            await unbroken(cancel(task))
        if not self._over.done():
            return "expired"
        if self._over.result() == "lost":
            raise LeaseLost
        return "cancelled"

    async def _refuse_input(self) -> None:
        errors = self._requests.errors
        first = f"{errors[0]['message']}" + (f" (line {errors[0]['line']})" if errors[0]["line"] else "")
        await self._end(Job.State.FAILED, error={"code": errors[0]["code"], "message": first, "lines": errors})

    async def _ask_all(self) -> None:
        """Raises LeaseLost, JobFailed, OSError."""
        waiting = (index for index in range(len(self._requests)) if index not in self._results)
        asking = {asyncio.create_task(self._ask_some(waiting)) for _ in range(settings.BATCH_CONCURRENCY)}
        telling = asyncio.create_task(self._progress.tell_regularly(self._results))
        try:
            pending = asking
            while pending:
                done, pending = await asyncio.wait({*pending, telling}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                pending.discard(telling)
        finally:
            await _cancel_all({*asking, telling})

    async def _ask_some(self, waiting: Iterator[int]) -> None:
        for index in waiting:
            line = await asyncio.to_thread(self._requests.read, index)
            succeeded, said = await self._answer(line)
            self._results.append(index, _dump(said), succeeded=succeeded)

    async def _answer(self, line: Line) -> tuple[bool, dict[str, Any]]:
        """Whether it succeeded, and the line that says so. Raises JobFailed."""
        if line.body.get("stream"):
            refused = InvalidRequest("'stream' can't be part of a batch: its answers come whole.", param="stream")
            return False, self._line(line, _response(refused.status, "", {"error": refused.as_dict()}))
        body = {name: value for name, value in line.body.items() if name not in ("stream", "stream_options")}
        pauses, failures = Pauses(), 0
        while True:
            asked_s = 0.0
            try:
                key = await key_of(self._job)
                async with self._desk.asking.holding(self._job.tenant.slug):
                    answer = await ask_whole(self._batch.endpoint, body, key)
                return True, self._line(line, _response(200, answer.request_id, answer.body))
            except Refused as refusal:
                failures += refusal.status == EngineFailed.status
                again = refusal.retry_after_s is not None or refusal.status == EngineFailed.status
                if not again or failures >= MAX_ENGINE_FAILURES:
                    return False, self._line(line, _response(refusal.status, refusal.request_id, refusal.body))
                asked_s = refusal.retry_after_s or 0.0
            except EngineFailed as error:
                if (failures := failures + 1) >= MAX_ENGINE_FAILURES:
                    return False, self._line(line, _response(error.status, "", {"error": error.as_dict()}))
            except EngineUnavailable:
                pass  # the database, in which keys are looked up
            await asyncio.sleep(pauses.next_s(asked_s))

    async def _finish(self, ending: str, failure: JobFailed | None = None) -> None:
        """Raises LeaseLost, EngineUnavailable, OSError."""
        await asyncio.to_thread(self._results.sync)
        self._progress.count(self._results)
        await self._progress.begin_finalizing()
        async with self._desk.reading:
            output, errors = await asyncio.to_thread(self._results.write_files, partial(self._unanswered, ending))
        state = {"cancelled": Job.State.CANCELLED, "failed": Job.State.FAILED}.get(ending, Job.State.SUCCEEDED)
        await self._end(
            state,
            expired=ending == "expired",
            completed=self._results.completed,
            failed=len(self._requests) - self._results.completed,
            output=output,
            errors=errors,
            error=failure.as_json() if failure is not None else None,
        )

    async def _end(self, state: Job.State, **outcome: Any) -> None:
        await in_database(partial(services.finish_batch, self._batch, self._job, state, **outcome))

    def _unanswered(self, ending: str, index: int) -> bytes:
        code, message = UNANSWERED[ending]
        return _dump(self._line(self._requests.read(index), None, {"code": code, "message": message}))

    def _line(
        self, line: Line, response: Mapping[str, Any] | None, error: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """A line of the output or of the errors. Its id is the same whoever asks."""
        digest = hashlib.blake2b(f"{self._batch.public_id}:{line.index}".encode(), digest_size=16).hexdigest()
        return {"id": f"batch_req_{digest}", "custom_id": line.custom_id, "response": response, "error": error}


def _response(status: int, request_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": request_id, "body": body}


def _dump(line: Mapping[str, Any]) -> bytes:
    """On one line, and in ASCII."""
    return json.dumps(line, separators=(",", ":")).encode()


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    await unbroken(cancel(*tasks))
    for task in tasks:
        if not task.cancelled():
            task.exception()  # one of them has been raised
