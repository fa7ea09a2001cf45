"""`make run`: check, prepare, start everything, say when a persona answers, and stop everything again."""

import os
import subprocess
import sys
import time

from deploy.local import preflight
from deploy.local.environment import ROOT, Environment, read_environment
from deploy.local.lifetime import how_it_ended
from deploy.local.log import LogPrinter, rotate
from deploy.local.problem import explained, print_problem
from deploy.local.processes import Runner
from deploy.local.ready import ReadyWatch
from deploy.local.valkey import running_valkey

STOPPED_BY_PERSON = (130, 143)  # honcho's exit codes after SIGINT and SIGTERM


@explained
def main() -> int:
    """Run the product until it is stopped."""
    started = typed_at()
    # What is written in a DATA_DIR that others may enter is still for its owner alone.
    os.umask(0o077)
    environment = read_environment()
    preflight.check(environment)
    rotate(environment.logs)
    with running_valkey(environment):
        if not prepare(environment):
            return 1
    printer = LogPrinter(sys.stdout, environment.logs, verbose=environment.verbose)
    watch = ReadyWatch(environment, started)
    print(f"\nStarting · full logs in {environment.logs} · Ctrl-C stops everything", flush=True)
    runner = Runner(environment, printer, watch)
    try:
        runner.loop()
    finally:
        watch.stop()
    if runner.returncode in STOPPED_BY_PERSON and printer.first_stopped is None:
        print("Everything has stopped.", flush=True)
        return 0
    return explain_stop(environment, printer)


def typed_at() -> float:
    """When the person typed `make run`, on the monotonic clock: MAKE_RUN_STARTED (Unix time, s), or now without it."""
    now, typed = time.time(), os.environ.get("MAKE_RUN_STARTED", "")
    return time.monotonic() - (max(0.0, now - int(typed)) if typed.isdigit() else 0.0)


def prepare(environment: Environment) -> bool:
    """Migrate, make the log-in, register: in a process of its own that says what went wrong; whether all went well."""
    command = [sys.executable, "-m", "deploy.local.prepare"]
    return subprocess.run(command, cwd=ROOT, env=environment.for_children(), check=False).returncode == 0


def explain_stop(environment: Environment, printer: LogPrinter) -> int:
    """Say which process stopped by itself, and what it said about it."""
    name, code = printer.first_stopped or ("a process", 1)
    errors = printer.errors(name)
    print(f"\n{'What' if errors else 'The last lines'} {name} said:", file=sys.stderr)
    for line in errors or printer.tail(name):
        print(f"    {line}", file=sys.stderr)
    print_problem(f"{name} {how_it_ended(code)}, so everything was stopped. All it said: {environment.logs / name}.log")
    return 1


if __name__ == "__main__":
    sys.exit(main())
