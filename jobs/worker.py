"""A worker's event loop: one for the process, in a thread of its own, on which all of its jobs run side by side.

Celery's threads only ring (jobs/dispatching.py). So what the gateway keeps (connections, its picture of the database)
is kept from one job to the next, and a job costs no process and no thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from inference.gateway.runtime import close_runtime
from jobs import generation
from jobs.batches import running as batches
from jobs.dispatching import Dispatcher
from jobs.models import Job

STOP_TIMEOUT_S = 10.0
THREADS = 32  # for the database and the disk

Result = TypeVar("Result")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_dispatcher: Dispatcher | None = None  # touched on the loop only, as is:
_closing: list[Dispatcher] = []


def ring() -> None:
    """There may be work for this process. Returns at once."""
    _loop_of_process().call_soon_threadsafe(_dispatcher_of_loop, True)


def wait_until_idle(timeout_s: float) -> None:
    """Until nothing is left to do. Raises TimeoutError."""
    _wait_for(_idle(), timeout_s)


def give_up_all() -> None:
    """Give back what runs: the process is about to end, and won't wait for minutes. Returns at once."""
    if (loop := _loop) is not None:
        asyncio.run_coroutine_threadsafe(_close_dispatcher(), loop)


def close_loop() -> None:
    """Give back what runs and let go of the loop and all that it holds; the next ring makes another."""
    global _loop
    with _lock:
        loop, _loop = _loop, None
    if loop is None:
        return
    asyncio.run_coroutine_threadsafe(_close(), loop).result(STOP_TIMEOUT_S)
    loop.call_soon_threadsafe(loop.stop)


def _dispatcher_of_loop(ring: bool) -> Dispatcher:
    global _dispatcher
    if _dispatcher is None:
        _dispatcher = Dispatcher({Job.Kind.GENERATION: generation.run, Job.Kind.BATCH: batches.run})
    if ring:
        _dispatcher.ring()
    return _dispatcher


async def _idle() -> None:
    for dispatcher in (*_closing, _dispatcher_of_loop(ring=False)):
        await dispatcher.idle()


async def _close_dispatcher() -> None:
    global _dispatcher
    if _dispatcher is not None:
        _closing.append(_dispatcher)
        _dispatcher = None
    while _closing:
        await _closing[0].close()
        _closing[:] = _closing[1:]


async def _close() -> None:
    await _close_dispatcher()
    await close_runtime()


def _wait_for(work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
    waiting = asyncio.run_coroutine_threadsafe(work, _loop_of_process())
    try:
        return waiting.result(timeout_s)
    except concurrent.futures.TimeoutError:
        waiting.cancel()
        raise


def _loop_of_process() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            # Python's own number goes by the cores: a few files being read would hold up the leases.
            _loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(THREADS, "jobs"))
            threading.Thread(target=_run_forever, args=(_loop,), name="jobs-loop", daemon=True).start()
        return _loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
