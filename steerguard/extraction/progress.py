"""Stopping long work on request, with what it finished kept."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ShouldStop = Callable[[], bool]
"""Asked between batches or answers; `threading.Event().is_set` is one."""


class Stopped(RuntimeError):
    """The caller asked to stop. What was finished is kept where a work folder was given."""


def stop_if(should_stop: ShouldStop | None) -> None:
    """Raises Stopped if the caller wants an end."""
    if should_stop is not None and should_stop():
        raise Stopped("stopped as asked; the same call with the same work folder goes on from here")


@contextmanager
def stop_signals() -> Iterator[ShouldStop]:
    """Takes the first SIGINT or SIGTERM as a request to stop; a second one does what it did before.

    Outside the main thread, where Python can't take signals, nothing stops.
    """
    asked = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def ask(number: int, _frame: Any) -> None:
        asked.set()
        signal.signal(number, before[signal.Signals(number)])

    if threading.current_thread() is threading.main_thread():
        before.update({number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)})
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
