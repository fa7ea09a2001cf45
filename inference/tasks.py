"""Celery tasks: thin wrappers round inference/reconcile.py and inference/usage.py."""

from celery import shared_task

from inference import reconcile, usage
from inference.models import Engine


@shared_task  # type: ignore[untyped-decorator]
def reconcile_engines(on_change: bool = False, only_starting: bool = False) -> None:
    """One task per enabled engine, so that one that hangs delays no other."""
    engines = Engine.objects.filter(enabled=True)
    if only_starting:
        engines = engines.filter(status__in=[Engine.Status.UNKNOWN, Engine.Status.STARTING])
    for pk in engines.values_list("pk", flat=True):
        reconcile_engine.apply_async(args=[pk], kwargs={"on_change": on_change}, expires=60)


@shared_task  # type: ignore[untyped-decorator]
def reconcile_engine(pk: int, on_change: bool = False) -> None:
    """Bring one engine to the desired state, unless that is being done."""
    reconcile.reconcile_exclusively(pk, on_change=on_change)


@shared_task  # type: ignore[untyped-decorator]
def move_usage() -> None:
    """Move what gateways have counted into the database."""
    usage.move_usage()
