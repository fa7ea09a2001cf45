"""Ending tasks that talk to Valkey."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 0.1


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
