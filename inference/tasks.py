"""Celery tasks: thin wrappers."""

from celery import shared_task

from inference import reconcile


@shared_task
def reconcile_engines() -> None:
    """Bring every enabled engine to the desired state."""
    reconcile.reconcile_engines()
