"""Celery tasks: thin wrappers round jobs/services.py and what runs each kind of job."""

from celery import shared_task
from celery.signals import worker_shutdown, worker_shutting_down

from jobs import cleaning, services, worker


@shared_task(name=services.RUN_TASK)  # type: ignore[untyped-decorator]
def run_next(kind: str) -> None:
    """There may be a job of `kind`. The message names none, and the worker looks for all kinds."""
    worker.ring()


@shared_task  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Make up for lost messages and lost workers."""
    services.sweep()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_jobs() -> None:
    """Forget what ended long ago, and what has expired."""
    cleaning.clean_up()


def give_jobs_back(**_kwargs: object) -> None:
    """A worker that is told to stop leaves its jobs to the next one at once."""
    worker.give_up_all()


def wait_for_jobs(**_kwargs: object) -> None:
    """They have been given back before the process ends."""
    worker.close_loop()


worker_shutting_down.connect(give_jobs_back)
worker_shutdown.connect(wait_for_jobs)
