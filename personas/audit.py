"""The record of who did what, written in the transaction that did it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.contrib.auth.models import User

from personas.models import ApiKey, AuditEvent, Tenant

_key_prefix: ContextVar[str | None] = ContextVar("key_prefix", default=None)


@contextmanager
def acting_through(key: ApiKey | None) -> Iterator[None]:
    """Rows written inside say which key did it: a key is nobody's account, so they have no actor."""
    token = _key_prefix.set(key.prefix if key else None)
    try:
        yield
    finally:
        _key_prefix.reset(token)


def record(
    tenant: Tenant | None,
    actor: User | None,
    action: str,
    target: str,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Add an audit row. `action` reads like `persona.published`; `detail` holds no secret."""
    by_key = {} if (prefix := _key_prefix.get()) is None else {"by_key": prefix}
    AuditEvent.objects.create(
        tenant=tenant, actor=actor, action=action, target=target, detail={**(detail or {}), **by_key}
    )
