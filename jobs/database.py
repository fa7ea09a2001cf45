"""The database from an event loop: in a thread, whose connection is closed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from django.db import Error as DatabaseError
from django.db import connection

from inference.gateway.errors import EngineUnavailable

Result = TypeVar("Result")


async def in_database(ask: Callable[[], Result]) -> Result:
    """What `ask` returns. Raises EngineUnavailable while the database is away, and whatever `ask` raises."""

    def run() -> Result:
        try:
            return ask()
        finally:
            # No request ends in these threads, which is when Django would close it.
            connection.close()

    try:
        return await asyncio.to_thread(run)
    except DatabaseError as error:
        raise EngineUnavailable("The gateway can't use its database at the moment.") from error
