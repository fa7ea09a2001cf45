"""Starts a reconcile at once when something changes that engines must follow."""

from typing import Any

from django.dispatch import receiver

from inference import tasks
from personas.changes import changed


@receiver(changed)
def reconcile_on_change(sender: object, *, kind: str, **_signal: Any) -> None:
    """Queue a pass over all engines. Raises when the queue is away; personas.changes logs it."""
    if kind in ("vector", "persona", "tenant", "engine"):
        tasks.reconcile_engines.delay()
