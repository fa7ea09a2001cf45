"""How many requests are at each engine, and the queue of those that wait for a place: bounded in length and in time.

An engine would take any number and let them wait inside, where nobody could be told. A place that comes free is handed
to whoever has waited longest for it, so an engine with free places has nobody waiting.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from inference.gateway.errors import EngineBusy


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    engines: Sequence[str]
    place: asyncio.Future[str]


class Places:
    """Belongs to one event loop. Engines of one base model share a queue."""

    def __init__(self, *, per_engine: int, queue_length: int, timeout_s: float) -> None:
        self.taken: Counter[str] = Counter()
        self._per_engine = per_engine
        self._queue_length = queue_length
        self._timeout_s = timeout_s
        self._queues: dict[str, deque[_Waiter]] = {}

    async def take(self, base_model: str, engines: Sequence[str]) -> str:
        """The first of `engines` with a free place, which is taken then, at once or in turn. Raises EngineBusy."""
        for engine in engines:
            if self.taken[engine] < self._per_engine:
                self.taken[engine] += 1
                return engine
        return await self._wait(self._queues.setdefault(base_model, deque()), engines, base_model)

    def release(self, base_model: str, engine: str) -> None:
        """Give back a place that was taken."""
        for waiter in self._queues.get(base_model, ()):
            if engine in waiter.engines and not waiter.place.done():
                waiter.place.set_result(engine)
                return
        self.taken[engine] -= 1

    async def _wait(self, queue: deque[_Waiter], engines: Sequence[str], base_model: str) -> str:
        if len(queue) >= self._queue_length:
            raise EngineBusy(f"Every engine of {base_model} is full, and so is the queue.")
        loop = asyncio.get_running_loop()
        waiter = _Waiter(engines, loop.create_future())
        queue.append(waiter)
        timer = loop.call_later(self._timeout_s, self._give_up, waiter.place, base_model)
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if not waiter.place.cancelled():  # it came in the same moment
                self.release(base_model, waiter.place.result())
            raise
        finally:
            timer.cancel()
            queue.remove(waiter)

    def _give_up(self, place: asyncio.Future[str], base_model: str) -> None:
        if not place.done():
            message = f"No engine of {base_model} had a place for this request within {self._timeout_s:g} s."
            place.set_exception(EngineBusy(message))
