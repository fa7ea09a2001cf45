"""One generation job, run: asked of the gateway in this process, its text put into the job's stream as it comes.

Its worker looks after the lease beside it (jobs/leases.py), so a cancellation ends the generation in the engine within
a second, and a job that another worker has taken over is let go of.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import redis
import structlog

from inference.gateway.cancelling import cancel, unbroken
from inference.gateway.errors import EngineFailed, EngineUnavailable
from inference.gateway.relay import BROKE_OFF
from inference.gateway.sse import DONE_EVENT, EventSplitter, parse_event
from jobs import events, services
from jobs.answers import Assembly, whole_texts
from jobs.asking import Pauses, Refused, ask_whole, call_gateway, key_of
from jobs.database import in_database
from jobs.dispatching import Desk
from jobs.errors import JobFailed
from jobs.models import Job
from jobs.shapes import job_shape
from jobs.slots import Turn

log = structlog.get_logger("jobs")

# How long text is collected before it becomes an event: ever longer, so that no stream outgrows events.MAX_EVENTS.
FLUSH_S = 0.05
FLUSH_S_AFTER = ((4000, 1.0), (2000, 0.25))

# A limit or an engine that is in the way is waited for, as a client would.
RETRY_FOR_S = 600.0


class _LeaseLost(Exception):
    """Another worker has the job, or it has ended: nothing more may be said about it."""


async def run(job: Job, desk: Desk, turn: Turn) -> None:
    """Run a job that this worker has claimed, to its end.

    Cancelling gives the job back: the next worker begins it anew.
    """
    async with desk.leases.holding(job) as over:
        running = asyncio.create_task(_generate(job, desk, turn), name=f"job-ask-{job.public_id}")
        try:
            ends: set[asyncio.Future[Any]] = {running, over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await unbroken(cancel(running))
                if over.result() == "cancelled":
                    await _finish(job, Job.State.CANCELLED)
            elif not running.cancelled() and (error := running.exception()) is not None:
                await _end_failed(job, error)
        except asyncio.CancelledError:
            await unbroken(desk.leases.give_back(job, running))
            raise


async def _end_failed(job: Job, error: BaseException) -> None:
    match error:
        case _LeaseLost():
            return
        case Refused():
            failure = error.failure
        case JobFailed():
            failure = error
        case EngineFailed() | EngineUnavailable():
            failure = JobFailed(str(error.code), error.message)
        case _:
            # Its words may quote the request.
            log.error("a job failed", job=job.public_id, error=type(error).__name__)
            failure = JobFailed("internal_error", "The job failed.")
    await _finish(job, Job.State.FAILED, error=failure.as_json())


async def _finish(job: Job, state: Job.State, **outcome: Any) -> None:
    await in_database(partial(services.finish, job, state, **outcome))


async def _generate(job: Job, desk: Desk, turn: Turn) -> None:
    teller = _Teller(desk.redis, job)
    await teller.begin()
    flushing = asyncio.create_task(teller.flush_regularly(), name=f"job-flush-{job.public_id}")
    asking = asyncio.ensure_future(_answer(job, teller, turn))
    try:
        await asyncio.wait({asking, flushing}, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            await unbroken(cancel(asking))
            flushing.result()  # raises why it ended: the lease is lost
        await teller.flush()  # what came before a failure, too
        result = asking.result()
    except asyncio.CancelledError:
        await unbroken(cancel(asking))
        raise
    finally:
        await unbroken(cancel(flushing))
    await _finish(job, Job.State.SUCCEEDED, result=result)


async def _answer(job: Job, teller: _Teller, turn: Turn) -> dict[str, Any]:
    """The whole answer, whose text `teller` has heard. Raises JobFailed, Refused, EngineFailed.

    What is in the way for a while is waited for without a place at the gateway: others have no reason to wait too.
    """
    deadline_s, pauses = asyncio.get_running_loop().time() + RETRY_FOR_S, Pauses()
    while True:
        await turn.take()
        try:
            return await _ask(job, teller)
        except Refused as refusal:
            if refusal.retry_after_s is None:
                raise
            pause_s = pauses.next_s(refusal.retry_after_s)
            if asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise
        finally:
            turn.lay_down()
        await asyncio.sleep(pause_s)


async def _ask(job: Job, teller: _Teller) -> dict[str, Any]:
    key = await key_of(job)
    splitter, done = EventSplitter(), False
    if not job.inputs["body"].get("stream"):
        whole = await ask_whole(job.inputs["path"], job.inputs["body"], key)
        answer = {**whole.body, "model": job.inputs["model"]}
        teller.hear_texts(whole_texts(answer))
        return answer
    async with contextlib.aclosing(call_gateway(job.inputs["path"], job.inputs["body"], key)) as parts:
        async for part in parts:
            for event in splitter.feed(part):
                if event == DONE_EVENT:
                    done = True
                elif event and not event.startswith(b":"):
                    chunk = parse_event(event)
                    if isinstance(error := chunk.get("error"), dict):
                        raise JobFailed(str(error.get("code")), str(error.get("message")))
                    teller.hear(chunk)
    if not done:
        raise EngineFailed(BROKE_OFF)
    return teller.assembly.whole(job.inputs["model"])


class _Teller:
    """Puts the text into the job's stream, batched. Valkey may be away for a while: the text waits here."""

    def __init__(self, client: Any, job: Job) -> None:
        self.assembly = Assembly()
        self._client = client
        self._job = job
        self._pending: dict[int, list[str]] = {}
        self._told: dict[int, list[str]] = {}
        self._events = 0
        self._heard = asyncio.Event()
        self._flushing = asyncio.Lock()

    def hear(self, chunk: dict[str, Any]) -> None:
        self.hear_texts(self.assembly.add(chunk))

    def hear_texts(self, texts: Any) -> None:
        for index, text in texts:
            self._pending.setdefault(index, []).append(text)
            self._heard.set()

    async def begin(self) -> None:
        """Raises _LeaseLost."""
        try:
            await self._append("started", job_shape(self._job), must_exist=False)
            if self._job.attempts > 1:
                await self._append("restarted", {"attempt": self._job.attempts}, must_exist=False)
        except redis.RedisError as error:
            log.warning("job event not stored", job=self._job.public_id, error=str(error))

    async def flush_regularly(self) -> None:
        """Raises _LeaseLost."""
        while True:
            await self._heard.wait()
            await asyncio.sleep(next((pause for many, pause in FLUSH_S_AFTER if self._events > many), FLUSH_S))
            self._heard.clear()
            await self.flush()
            if any(self._pending.values()):
                self._heard.set()  # Valkey was away

    async def flush(self) -> None:
        """Raises _LeaseLost."""
        async with self._flushing:
            try:
                for index in sorted(self._pending):
                    await self._flush_choice(index)
            except redis.RedisError as error:
                log.warning("job event not stored", job=self._job.public_id, error=str(error))

    async def _flush_choice(self, index: int) -> None:
        pieces = self._pending[index]
        if not (count := len(pieces)):
            return
        text = "".join(pieces[:count])
        if await self._append("delta", {"index": index, "text": text}, must_exist=True) == "lost":
            # Valkey came back empty: whoever still watches begins anew.
            await self._append("restarted", {"attempt": self._job.attempts}, must_exist=False)
            for known, parts in self._told.items():
                await self._append("delta", {"index": known, "text": "".join(parts)}, must_exist=True)
            await self._append("delta", {"index": index, "text": text}, must_exist=True)
        self._told.setdefault(index, []).append(text)
        del pieces[:count]

    async def _append(self, type: str, data: dict[str, Any], *, must_exist: bool) -> events.Appended:
        answer = await events.append_async(self._client, self._job, type, data, must_exist=must_exist)
        if answer == "refused":
            raise _LeaseLost
        self._events += 1
        return answer
