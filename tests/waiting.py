"""Waiting for what comes a moment later, on a machine that may be busy with something else.

What a server does after its answer (a log line, a count, a slot that is free again) is waited for, never asserted at
once. How long it may take says how busy the machine is, so it is long; where a time is what is promised, `within` is.
"""

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def eventually(claim: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Fails unless `claim` comes true in time."""
    deadline_s = time.monotonic() + within_s
    pause_s = 0.002
    while not claim():
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


def within(limit_s: float, measure: Callable[[], float], tries: int = 10) -> None:
    """Fails unless `measure` says a time below the limit once: a machine that stalls spoils a try, not the best one."""
    took_s: list[float] = []
    while not took_s or took_s[-1] >= limit_s:
        assert len(took_s) < tries, f"expected less than {limit_s:g} s, found {took_s}"
        took_s.append(measure())
