"""A worker's event loop: one for the process, in a thread of its own, on which all of its jobs run side by side.

Celery's threads only wait for them. So what the gateway keeps (connections, its picture of the database) is kept from
one job to the next, and a job costs no process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from inference.gateway.runtime import close_runtime

STOP_TIMEOUT_S = 10.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_running: set[asyncio.Task[None]] = set()  # touched on the loop only


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Wait until `work` is done, or has given up after `give_up_all`. Raises what it raises."""
    with contextlib.suppress(concurrent.futures.CancelledError):
        asyncio.run_coroutine_threadsafe(_tracked(work), _loop_of_process()).result()


async def _tracked(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    _running.add(task)
    try:
        await task
    finally:
        _running.discard(task)


def give_up_all() -> None:
    """Cancel what runs: the process is about to end, and won't wait for minutes. Returns at once."""
    if (loop := _loop) is not None:
        loop.call_soon_threadsafe(_cancel_all)


def _cancel_all() -> None:
    for task in _running:
        task.cancel()


def close_loop() -> None:
    """Let go of the loop and all that it holds; the next job makes another."""
    global _loop
    with _lock:
        loop, _loop = _loop, None
    if loop is None:
        return
    asyncio.run_coroutine_threadsafe(close_runtime(), loop).result(STOP_TIMEOUT_S)
    loop.call_soon_threadsafe(loop.stop)


def _loop_of_process() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run_forever, args=(_loop,), name="jobs-loop", daemon=True).start()
        return _loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
