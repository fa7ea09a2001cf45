"""Celery tasks: thin wrappers round jobs/services.py and what runs each kind of job."""

from celery import shared_task
from celery.signals import worker_shutting_down

from jobs import services, worker
from jobs.generation import run as run_generation
from jobs.models import Job


@shared_task(name=services.RUN_TASK)  # type: ignore[untyped-decorator]
def run_next(kind: str) -> None:
    """Run the job whose turn it is. The message names none."""
    if kind == Job.Kind.GENERATION and (job := services.claim_next(kind)) is not None:
        worker.run_on_loop(run_generation(job))


@shared_task  # type: ignore[untyped-decorator]
def sweep() -> None:
    """Make up for lost messages and lost workers."""
    services.sweep()


@shared_task  # type: ignore[untyped-decorator]
def delete_old_jobs() -> None:
    """Forget what ended long ago."""
    services.delete_old_jobs()


def give_jobs_back(**_kwargs: object) -> None:
    """A worker that is told to stop leaves its jobs to the next one at once."""
    worker.give_up_all()


worker_shutting_down.connect(give_jobs_back)
