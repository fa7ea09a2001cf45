"""One generation job, run: asked of the gateway in this process, its text put into the job's stream as it comes.

The request takes the way of any other, from its key to its log line: limits, locks and usage hold for it, and a key
that was revoked meanwhile gets nothing. A worker looks after its lease beside it, so a cancellation ends the
generation in the engine within a second, and a job that another worker has taken over is let go of.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import redis
import structlog
from django.utils import timezone

from inference.gateway.app import application
from inference.gateway.authenticate import ADMITTED_KEY
from inference.gateway.directory import Key
from inference.gateway.errors import EngineFailed, EngineUnavailable
from inference.gateway.relay import BROKE_OFF
from inference.gateway.runtime import current_runtime
from inference.gateway.sse import DONE_EVENT, EventSplitter, parse_event
from jobs import events, services
from jobs.answers import Assembly, whole_texts
from jobs.database import in_database
from jobs.errors import JobFailed
from jobs.models import Job
from jobs.shapes import job_shape

log = structlog.get_logger("jobs")

LOOK_EVERY_S = 0.5  # a cancellation is noticed within it
RENEW_EVERY_S = 5.0

# How long text is collected before it becomes an event: ever longer, so that no stream outgrows events.MAX_EVENTS.
FLUSH_S = 0.05
FLUSH_S_AFTER = ((4000, 1.0), (2000, 0.25))

# A limit or an engine that is in the way is waited for, as a client would.
RETRY_FOR_S = 600.0
MAX_RETRY_PAUSE_S = 30.0


class _Refused(Exception):
    """The gateway's answer is an error. `retry_after_s` None: asking again is no use."""

    def __init__(self, status: int, answer: bytes, retry_after_s: float | None) -> None:
        try:
            error = json.loads(answer)["error"]
            self.failure = JobFailed(str(error.get("code") or error.get("type")), str(error["message"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            self.failure = JobFailed("internal_error", "The gateway failed to answer this request.")
        super().__init__(self.failure.message)
        worth_it = status in (429, 503) and self.failure.code != "insufficient_quota"
        self.retry_after_s = retry_after_s if worth_it else None


class _LeaseLost(Exception):
    """Another worker has the job, or it has ended: nothing more may be said about it."""


async def run(job: Job) -> None:
    """Run a job that this worker has claimed, to its end.

    Cancelling gives the job back: the next worker begins it anew.
    """
    running = asyncio.create_task(_generate(job), name=f"job-{job.public_id}")
    watching = asyncio.create_task(_watch(job), name=f"job-watch-{job.public_id}")
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
            if watching.result() == "cancelled":
                await _finish(job, Job.State.CANCELLED)
        elif not running.cancelled() and (error := running.exception()) is not None:
            await _end_failed(job, error)
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.wait({running})
        await in_database(partial(services.give_back, job))
        raise
    finally:
        watching.cancel()


async def _end_failed(job: Job, error: BaseException) -> None:
    match error:
        case _LeaseLost():
            return
        case _Refused():
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


async def _watch(job: Job) -> services.LeaseState:
    """Keep the job this worker's, until it isn't or shouldn't be. A database that is away is asked again."""
    renewed_s = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        with contextlib.suppress(EngineUnavailable):
            state = await in_database(partial(services.look_at_lease, job))
            if state != "held":
                return state
            if (now_s := asyncio.get_running_loop().time()) - renewed_s >= RENEW_EVERY_S:
                await in_database(partial(services.renew_lease, job))
                renewed_s = now_s


async def _generate(job: Job) -> None:
    async with contextlib.aclosing(events.open_redis()) as client:
        teller = _Teller(client, job)
        await teller.begin()
        flushing = asyncio.create_task(teller.flush_regularly(), name=f"job-flush-{job.public_id}")
        try:
            asking = asyncio.ensure_future(_answer(job, teller))
            await asyncio.wait({asking, flushing}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})
                flushing.result()  # raises why it ended: the lease is lost
            await teller.flush()  # what came before a failure, too
            result = asking.result()
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking})
            raise
        finally:
            flushing.cancel()
            await asyncio.wait({flushing})
    await _finish(job, Job.State.SUCCEEDED, result=result)


async def _answer(job: Job, teller: _Teller) -> dict[str, Any]:
    """The whole answer, whose text `teller` has heard. Raises JobFailed, EngineFailed."""
    deadline_s = asyncio.get_running_loop().time() + RETRY_FOR_S
    while True:
        try:
            return await _ask(job, teller)
        except _Refused as refusal:
            pause_s = refusal.retry_after_s
            if pause_s is None or asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise
            await asyncio.sleep(min(max(pause_s, 0.1), MAX_RETRY_PAUSE_S))


async def _ask(job: Job, teller: _Teller) -> dict[str, Any]:
    key = await _key_of(job)
    splitter, done = EventSplitter(), False
    whole = bytearray()
    async with contextlib.aclosing(_call_gateway(job.inputs["path"], job.inputs["body"], key)) as parts:
        async for part in parts:
            if not job.inputs["body"].get("stream"):
                whole += part
                continue
            for event in splitter.feed(part):
                if event == DONE_EVENT:
                    done = True
                elif event and not event.startswith(b":"):
                    chunk = parse_event(event)
                    if isinstance(error := chunk.get("error"), dict):
                        raise JobFailed(str(error.get("code")), str(error.get("message")))
                    teller.hear(chunk)
    if whole:
        answer = {**json.loads(whole), "model": job.inputs["model"]}
        teller.hear_texts(whole_texts(answer))
        return answer
    if not done:
        raise EngineFailed(BROKE_OFF)
    return teller.assembly.whole(job.inputs["model"])


async def _key_of(job: Job) -> Key:
    """The key that asked, as it is now. Raises JobFailed."""
    live = (await current_runtime()).live
    key = live.current.keys.get(job.key_prefix)
    if key is None:
        key = (await live.refreshed({"key"})).keys.get(job.key_prefix)
    if key is None or (key.expires_at is not None and key.expires_at <= timezone.now()):
        raise JobFailed("invalid_api_key", "The API key that asked for this job has expired or was revoked.")
    return key


async def _call_gateway(path: str, body: dict[str, Any], key: Key) -> AsyncGenerator[bytes, None]:
    """The body of the gateway's answer, part by part. Raises _Refused.

    Closing it is to the gateway what a client's hanging up is.
    """
    request = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(maxsize=64)

    async def receive() -> dict[str, Any]:
        if (message := next(request, None)) is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    async def serve() -> None:
        try:
            scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": []}
            await application({**scope, ADMITTED_KEY: key}, receive, messages.put)
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                messages.put_nowait(None)

    serving = asyncio.create_task(serve(), name="job-request")
    try:
        start = await messages.get()
        if start is None:
            raise EngineFailed(BROKE_OFF)
        refused = bytearray()
        while (message := await messages.get()) is not None:
            if start["status"] == 200:
                yield message["body"]
            else:
                refused += message["body"]
            if not message["more_body"]:
                break
        if start["status"] != 200:
            raise _Refused(start["status"], bytes(refused), _retry_after_s(start["headers"]))
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.exception()  # logged by the gateway


def _retry_after_s(headers: list[tuple[bytes, bytes]]) -> float | None:
    value = dict(headers).get(b"retry-after")
    return float(value) if value is not None else None


class _Teller:
    """Puts the text into the job's stream, batched. Valkey may be away for a while: the text waits here."""

    def __init__(self, client: Any, job: Job) -> None:
        self.assembly = Assembly()
        self._client = client
        self._job = job
        self._pending: dict[int, list[str]] = {}
        self._told: dict[int, list[str]] = {}
        self._events = 0
        self._flushing = asyncio.Lock()

    def hear(self, chunk: dict[str, Any]) -> None:
        self.hear_texts(self.assembly.add(chunk))

    def hear_texts(self, texts: Any) -> None:
        for index, text in texts:
            self._pending.setdefault(index, []).append(text)

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
            await asyncio.sleep(next((pause for many, pause in FLUSH_S_AFTER if self._events > many), FLUSH_S))
            await self.flush()

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
