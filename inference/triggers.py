"""What follows at once from a change: engines are brought along, open pages are told."""

from collections.abc import Mapping
from typing import Any

from django.dispatch import receiver

from inference import status_feed, tasks
from personas.changes import changed


@receiver(changed)
def reconcile_on_change(sender: object, *, kind: str, subject: Mapping[str, str | int | None], **_signal: Any) -> None:
    """Queue a pass over the engines. A failure is logged by personas.changes; the next tick makes up for it."""
    if kind in ("vector", "persona") or (kind == "engine" and subject.get("event") == "registered"):
        tasks.reconcile_engines.apply_async(kwargs={"on_change": True}, expires=30)


@receiver(changed)
def push_on_change(sender: object, *, kind: str, **_signal: Any) -> None:
    """Tell the open pages what the engines are doing."""
    if kind == "engine":
        status_feed.push_engines()
