"""The processes of `make run`, and honcho's manager fitted to them.

honcho starts them, relays their output and stops all of them when one ends. What is added: children that can't
outlive their supervisor, time enough for vLLM to stop, and a reason when something stops by itself.
"""

import multiprocessing
import signal
import sys
from collections.abc import Callable
from typing import Any

import honcho.manager
from honcho.process import Popen, Process

from deploy.local.environment import ROOT, Environment
from deploy.local.lifetime import end_with_parent
from deploy.local.log import LogPrinter

# vLLM gets STOP_PATIENCE_S of deploy.local.engine for itself before honcho kills what is left.
honcho.manager.KILL_WAIT = 15


def commands(environment: Environment) -> dict[str, list[str]]:
    """Name and command of each process, the pages first."""
    python = sys.executable
    web = [python, "-m", "uvicorn", "config.asgi:application", "--host", environment.host]
    web += ["--port", str(environment.port), "--no-access-log", "--timeout-graceful-shutdown", "3"]
    worker = [python, "-m", "celery", "-A", "config", "-q", "worker", "--beat", "--concurrency", "2"]
    worker += ["--without-gossip", "--without-mingle"]
    chosen = {"web": web, "worker": worker}
    if environment.valkey_socket is not None:
        chosen["valkey"] = [python, "-m", "deploy.local.valkey"]
    if environment.engine_port is not None:
        chosen["engine"] = [python, "-m", "deploy.local.engine"]
    return chosen


class _BoundProcess(Process):  # type: ignore[misc]  # honcho has no types
    """A process of honcho's whose relay dies with the runner, and whose child dies with the relay."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._child_ctor = _popen

    def run(self, *args: Any, **kwargs: Any) -> None:
        end_with_parent(signal.SIGKILL)
        super().run(*args, **kwargs)


def _popen(command: list[str], **kwargs: Any) -> Popen:
    return Popen(command, shell=False, preexec_fn=end_with_parent, **kwargs)


class Runner(honcho.manager.Manager):  # type: ignore[misc]  # honcho has no types
    """Runs the product until Ctrl-C, SIGTERM, or the end of one of its processes."""

    def __init__(self, environment: Environment, printer: LogPrinter, *, on_start: Callable[[], None]) -> None:
        # Fork, whatever the Python: honcho's queue and bound methods are inherited, not pickled.
        multiprocessing.set_start_method("fork", force=True)
        super().__init__(printer)
        self._process_ctor = _BoundProcess
        self._on_start = on_start
        for name, command in commands(environment).items():
            # The supervisors of this package read the person's own variables, as the runner does.
            own = command[2].startswith("deploy.")
            self.add_process(name, command, env=None if own else environment.for_children(), cwd=str(ROOT))

    def _start(self) -> None:
        super()._start()
        # Threads begin only after the last fork.
        self._on_start()
