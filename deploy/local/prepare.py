"""Brings the database to the state the pages start from: schema, the demo's people, the engine's row.

The demo's vectors and personas, which take a minute, are made while the pages are up and the engine loads: see
`commands` in deploy/local/processes.py. Only a MODEL of the person's own, which may fill the machine, is not loaded
twice at a time: there they are made here.

A process of its own (`python -m deploy.local.prepare`), because the runner itself stays free of Django: it forks.
"""

import io
import os
import sys

import django
from django.core.management import CommandError, call_command
from django.db import OperationalError

from deploy.local.environment import demo_model_dir, read_environment
from deploy.local.problem import Problem, explained
from deploy.local.progress import Steps, heading


@explained
def main() -> int:
    """Migrate, seed people, register."""
    environment = read_environment()
    os.environ.setdefault("TQDM_DISABLE", "1")  # transformers' bars, beside the demo's own
    django.setup()
    heading("Preparing the database")
    steps = Steps(total=3)
    with steps.step("Schema") as step:
        said = io.StringIO()
        try:
            call_command("migrate", interactive=False, verbosity=1, stdout=said)
        except OperationalError as error:
            first_line = str(error).strip().splitlines()[0]
            raise Problem(f"The database can't be used ({first_line}): check DATABASE_URL.") from error
        applied = said.getvalue().count("  Applying ")
        step.result = f"{applied} migrations applied" if applied else "up to date"
    try:
        if environment.engine_port is None or environment.model == str(demo_model_dir(environment.data_dir)):
            with steps.step("The demo's log-in and keys"):
                call_command("seed_demo", people_only=True, stdout=io.StringIO())
        else:
            # It shows its own progress, vector by vector, so it is no `Step` of ours.
            steps.announce("Demo content")
            call_command("seed_demo")
        with steps.step("Engine registered"):
            call_command("register_engine", stdout=io.StringIO())
    except CommandError as error:
        raise Problem(str(error)) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
