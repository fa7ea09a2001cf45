"""Whose limits a request goes by: its tenant's and its key's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from inference.gateway.directory import Key, Limits

_MAX_LIMIT = 2**53  # Lua counts in doubles


@dataclass(frozen=True, slots=True)
class Subject:
    """A tenant or a key. `maxima` are its limits in the order in which limits.lua takes them, 0 for none."""

    name: str
    described: str
    tenant: str
    prefix: str | None
    limits: Limits
    maxima: tuple[int, ...]


@lru_cache(maxsize=4096)
def subjects_of(key: Key | None, tenant: str, tenant_limits: Limits) -> tuple[Subject, ...]:
    """Those that have limits, the tenant first."""
    subjects = []
    if tenant_limits.any:
        subjects.append(Subject(tenant, f"tenant '{tenant}'", tenant, None, tenant_limits, _maxima_of(tenant_limits)))
    if key is not None and key.limits.any:
        described = f"key '{key.name}' (sg_{key.prefix}_…)"
        name = f"{tenant}:{key.prefix}"
        subjects.append(Subject(name, described, tenant, key.prefix, key.limits, _maxima_of(key.limits)))
    return tuple(subjects)


def _maxima_of(limits: Limits) -> tuple[int, ...]:
    in_order = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.concurrent_requests,
        limits.tokens_per_day,
        limits.tokens_per_month,
    )
    return tuple(0 if limit is None else min(limit, _MAX_LIMIT) for limit in in_order)
