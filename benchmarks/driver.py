"""Contestants of a benchmark as processes that are asked in turn."""

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent


class Stopped(Exception):
    """A contestant's process is gone."""


class Driven:
    """A contestant's process; it answers JSON lines with JSON lines (benchmarks/contestant.py)."""

    def __init__(self, kind: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.kind = kind
        self.log = ROOT / "var" / "logs" / f"bench-{kind}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        everyone = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **everyone, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def read(self) -> dict[str, Any]:
        """Its next answer. Raises Stopped."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Stopped(f"{self.kind} stopped; see {self.log.relative_to(ROOT)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.read()

    def take_turn(self, pause_s: float) -> None:
        """Lets the engine before come to rest (it spins for about a second), and this one wake up."""
        time.sleep(pause_s)
        self.ask("generate", batch=4, tokens=8, distinct=0)

    def dismiss(self) -> None:
        """Lets it stop, without waiting for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> None:
        self.dismiss()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def threads(self) -> Iterator[int]:
        """Ids of the threads of its processes."""
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    yield from (thread.id for thread in process.threads())


@contextlib.contextmanager
def all_cores(engines: Sequence[Driven]) -> Iterator[None]:
    """While the block runs, lets the engines' processes use every core; then they are bound again as they were.

    vLLM binds each engine's worker to the same core here, and so would have them all compile on that one.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    bound: dict[int, set[int]] = {}
    done = threading.Event()

    def widen() -> None:
        everything = os.sched_getaffinity(0)
        while not done.wait(1):
            for thread in (thread for engine in engines for thread in engine.threads()):
                with contextlib.suppress(OSError):
                    if (cores := os.sched_getaffinity(thread)) != everything:
                        bound[thread] = cores
                        os.sched_setaffinity(thread, everything)

    widening = threading.Thread(target=widen, daemon=True)
    widening.start()
    try:
        yield
    finally:
        done.set()
        widening.join()
        for thread, cores in bound.items():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, cores)
