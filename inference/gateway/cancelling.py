"""Ending tasks that talk to Valkey, and what has to be done although its own task is being ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

AGAIN_S = 0.1

Result = TypeVar("Result")


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Returns when all of them have ended, however they did.

    Once is not enough: redis-py swallows a cancellation that meets it while it connects, and a task that goes round
    and round would do so for ever.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_S)


async def unbroken(work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns or raises. It runs to its end, however often the task that waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()
