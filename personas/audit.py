"""The record of who did what, written in the transaction that did it."""

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from personas.models import AuditEvent, Tenant


def record(
    tenant: Tenant | None,
    actor: User | None,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an audit row. `action` reads like `persona.published`; `detail` holds no secret."""
    AuditEvent.objects.create(tenant=tenant, actor=actor, action=action, target=target, detail=dict(detail or {}))
