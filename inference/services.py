"""Every change to the fleet's engines, one function each (see personas/services.py for the habits)."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from inference.models import Engine
from personas.audit import record
from personas.changes import announce
from personas.validation import saved

log = structlog.get_logger("engines")

MAX_DETAIL_CHARS = 300


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one look at an engine found. `detail` is for everybody's eyes: no tenant and nothing of theirs."""

    status: Engine.Status
    detail: str = ""
    answered: bool = False
    boot_id: str = ""
    base_model: str = ""
    hidden_size: int | None = None
    num_layers: int | None = None


@transaction.atomic
def register_engine(
    *,
    name: str,
    url: str,
    api_key: str = "",
    expected_base_model: str = "",
    actor: User | None = None,
) -> Engine:
    """Make an engine known, or change what is known about one; it is looked at anew at once.

    Raises InvalidField.
    """
    engine = Engine.objects.select_for_update().filter(name=name).first() or Engine(name=name)
    is_new = engine.pk is None
    url = url.strip().rstrip("/")
    if url != engine.url:
        engine.boot_id, engine.placed_digests = "", []
    engine.url = url
    engine.api_key = api_key
    engine.expected_base_model = expected_base_model
    engine.enabled = True
    engine.registered_at = timezone.now()
    engine.status, engine.status_detail = Engine.Status.UNKNOWN, "not looked at yet"
    saved(engine)
    record(None, actor, "engine.registered" if is_new else "engine.changed", name, {"url": url})
    announce("engine", engine=name, event="registered")
    return engine


@transaction.atomic
def set_engine_enabled(*, engine: Engine, enabled: bool, actor: User | None = None) -> Engine:
    """A disabled engine gets no requests and is not looked at."""
    engine = Engine.objects.select_for_update().get(pk=engine.pk)
    if engine.enabled != enabled:
        engine.enabled = enabled
        engine.status = Engine.Status.UNKNOWN
        engine.status_detail = "not looked at yet" if enabled else "disabled by the operator"
        saved(engine)
        record(None, actor, "engine.enabled" if enabled else "engine.disabled", engine.name)
        announce("engine", engine=engine.name, event="registered")
    return engine


@transaction.atomic
def remove_engine(*, engine: Engine, actor: User | None = None) -> None:
    """Forget an engine; what runs there goes on, vectors included."""
    record(None, actor, "engine.removed", engine.name, {"url": engine.url})
    announce("engine", engine=engine.name, event="removed")
    engine.delete()


@transaction.atomic
def note_placed(*, engine: Engine, boot_id: str, digests: set[str]) -> None:
    """Remember that these vectors, and no others, are on the engine by our doing during this boot.

    Written before a vector is sent, so that none is ever there unknown to us. Not audited: it is no decision.
    """
    Engine.objects.filter(pk=engine.pk).update(boot_id=boot_id, placed_digests=sorted(digests))


@transaction.atomic
def record_observation(*, engine: Engine, observation: Observation) -> None:
    """Store what a look at the engine found, and announce it when it differs from what was known.

    An engine that was registered anew, disabled or removed meanwhile keeps what that says. Not audited: it is
    no decision.
    """
    current = (
        Engine.objects.select_for_update()
        .filter(pk=engine.pk, registered_at=engine.registered_at, enabled=True)
        .first()
    )
    if current is None:
        return
    before = (current.status, current.status_detail, current.base_model)
    current.status = observation.status
    current.status_detail = observation.detail[:MAX_DETAIL_CHARS]
    if observation.answered:
        current.last_seen_at = timezone.now()
        current.base_model = observation.base_model
        current.hidden_size = observation.hidden_size
        current.num_layers = observation.num_layers
    current.save(update_fields=["status", "status_detail", "last_seen_at", "base_model", "hidden_size", "num_layers"])
    if before != (current.status, current.status_detail, current.base_model):
        log.info(
            "engine status",
            engine=current.name,
            status=str(current.status),
            detail=current.status_detail,
        )
        announce("engine", engine=current.name, event="status")
