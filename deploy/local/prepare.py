"""Brings the database to the state the product starts from: schema, demo content, the engine's row.

A process of its own (`python -m deploy.local.prepare`), because the runner itself stays free of Django: it forks.
"""

import io
import os
import sys

import django
from django.core.management import CommandError, call_command
from django.db import OperationalError

from deploy.local.problem import Problem, explained
from deploy.local.progress import Steps, heading


@explained
def main() -> int:
    """Migrate, seed, register."""
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
