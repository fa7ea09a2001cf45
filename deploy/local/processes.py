"""The processes of `make run`, and honcho's manager fitted to them.

honcho starts them, relays their output and stops all of them when one ends. What is added: children that can't
outlive their supervisor, time enough for vLLM to stop, one process that may end, and Valkey stopped last, because
the others talk to it to their end.
"""

import multiprocessing
import signal
import sys
from typing import Any

import honcho.manager
from honcho.process import Popen, Process

from deploy.local.environment import ROOT, Environment
from deploy.local.lifetime import end_with_parent
from deploy.local.log import DEMO, LogPrinter
from deploy.local.ready import ReadyWatch

# vLLM gets STOP_PATIENCE_S of deploy.local.engine for itself before honcho kills what is left.
honcho.manager.KILL_WAIT = 15
VALKEY = "valkey"


def commands(environment: Environment) -> dict[str, list[str]]:
    """Name and command of each process, the pages first."""
    python = sys.executable
    web = [python, "-m", "uvicorn", "config.asgi:application", "--host", environment.host]
    web += ["--port", str(environment.port), "--no-access-log", "--timeout-graceful-shutdown", "3"]
    web += ["--http", "inference.bounded_http:BoundedHttp"]
    # In a container one is root, which celery deplores in five lines at each start.
    celery = [python, "-W", "ignore::UserWarning", "-m", "celery", "-A", "config", "-q", "worker"]
    celery += ["--without-gossip", "--without-mingle"]
    worker = [*celery, "--beat", "--concurrency", "2"]
    # Jobs run for minutes and must not hold up the rest. They run on one event loop, for which a thread rings
    # (jobs/worker.py).
    jobs = [*celery, "--queues", "generation,batch", "--hostname", "jobs@%h", "--pool", "threads"]
    jobs += ["--concurrency", "1"]
    # The demo ends when it is made; when it was made before, in a second.
    chosen = {"web": web, "worker": worker, "jobs": jobs, DEMO: [python, "manage.py", "seed_demo"]}
    if environment.valkey_socket is not None:
        chosen[VALKEY] = [python, "-m", "deploy.local.valkey"]
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

    def __init__(self, environment: Environment, printer: LogPrinter, watch: ReadyWatch) -> None:
        # Fork, whatever the Python: honcho's queue and bound methods are inherited, not pickled.
        multiprocessing.set_start_method("fork", force=True)
        super().__init__(printer)
        self._process_ctor = _BoundProcess
        self._watch = watch
        self._valkey_told = False
        for name, command in commands(environment).items():
            # The supervisors of this package read the person's own variables, as the runner does.
            own = command[-1].startswith("deploy.")
            # transformers' bars are of no use in a log.
            children = environment.for_children() | {"TQDM_DISABLE": "1"}
            self.add_process(name, command, env=None if own else children, cwd=str(ROOT))

    def say(self, text: str) -> None:
        """Print a line of the runner's own into the log."""
        self._system_print(f"{text}\n")

    def _start(self) -> None:
        super()._start()
        # Threads begin only after the last fork.
        self._watch.start(self.say, self.demo_is_made)

    def demo_is_made(self) -> bool:
        """Whether the demo's process has ended well."""
        return self._processes[DEMO].get("returncode") == 0

    def _any_stopped(self) -> bool:
        """Asked by honcho, to stop the others: not when the demo is made."""
        stopped = [name for name, process in self._processes.items() if process.get("returncode") is not None]
        return any(name != DEMO or not self.demo_is_made() for name in stopped)

    def _all_stopped(self) -> bool:
        """Asked by honcho after each event: when only Valkey is left of a stop, its turn has come."""
        left = [name for name, process in self._processes.items() if process.get("returncode") is None]
        if self._terminating and left == [VALKEY] and not self._valkey_told:
            self._valkey_told = True
            self._procmgr.terminate(self._processes[VALKEY]["pid"])
        return not left

    def _killall(self, force: bool = False) -> None:
        for name, process in self._processes.items():
            if "pid" not in process or "returncode" in process:
                continue
            if force:
                self._procmgr.kill(process["pid"])
            elif name != VALKEY:
                self._procmgr.terminate(process["pid"])
