"""Usage on its way from Valkey into the database, once and no more than once, and what has been used.

Gateways add up in the hash PENDING. `move_usage` renames it to MOVING with an id of its own, adds it to the rows of
UsageDay in the transaction that also stores the id, and deletes it. Wherever that is interrupted, the next run goes on:
a batch whose id is stored is only deleted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from inference.models import UsageBatch, UsageDay
from personas.changes import valkey
from personas.models import ApiKey, Tenant

log = structlog.get_logger("usage")

PENDING = "steerguard:usage:pending"
MOVING = "steerguard:usage:moving"

LAST_USED = "last_used"
AMOUNTS = (
    "requests",
    "failures",
    "prompt_tokens",
    "cached_prompt_tokens",
    "completion_tokens",
    "steered_tokens",
)
# An id is needed for as long as its batch may still be in Valkey, a copy that was restored included.
KEEP_BATCHES = timedelta(days=30)

_ID = "id"
_TAKE = """
if redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return {}
  end
  redis.call('RENAME', KEYS[1], KEYS[2])
end
redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
return redis.call('HGETALL', KEYS[2])
"""
# A mover that was slow must not delete a later batch.
_DROP = """
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""

MAX_PERSONA, MAX_KEY = 63, 8  # characters

_ENCODER = json.JSONEncoder(separators=(",", ":"))

Place = tuple[str, str, str, date]


def field_name(tenant: str, persona: str, key: str, day: str, what: str) -> str:
    """A field of PENDING."""
    return _ENCODER.encode([tenant, persona, key, day, what])


def move_usage() -> int:
    """Move what has been counted into the database; returns how many rows it changed. Raises redis.RedisError."""
    found = take_batch()
    if found is None:
        return 0
    batch_id, amounts = found
    changed = apply_batch(batch_id, amounts)
    drop_batch(batch_id)
    return changed


def take_batch() -> tuple[uuid.UUID, dict[str, int]] | None:
    """The batch that is being moved, or what is pending as a new one; None when there is neither."""
    client = valkey()
    flat: Any = client.eval(_TAKE, 2, PENDING, MOVING, _ID, str(uuid.uuid4()))
    if not flat:
        return None
    found = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
    batch_id = uuid.UUID(found.pop(_ID).decode())
    return batch_id, {name: int(value) for name, value in found.items()}


def apply_batch(batch_id: uuid.UUID, amounts: Mapping[str, int]) -> int:
    """Add a batch to the rows, unless that was done before; returns how many rows it changed."""
    try:
        with transaction.atomic():
            UsageBatch.objects.create(pk=batch_id)
            UsageBatch.objects.filter(applied_at__lt=timezone.now() - KEEP_BATCHES).delete()
            return _add(amounts)
    except IntegrityError:
        if UsageBatch.objects.filter(pk=batch_id).exists():
            return 0
        raise


def drop_batch(batch_id: uuid.UUID) -> None:
    valkey().eval(_DROP, 1, MOVING, _ID, str(batch_id))


def _add(amounts: Mapping[str, int]) -> int:
    by_place: dict[Place, dict[str, int]] = {}
    for name, amount in amounts.items():
        try:
            tenant, persona, key, day, what = json.loads(name)
            # Cut to what the columns hold: one field that doesn't fit must not hold up all the others for good.
            place = (tenant, persona[:MAX_PERSONA], key[:MAX_KEY], date.fromisoformat(day) if day else date.min)
        except (ValueError, TypeError):
            log.error("usage that nobody can read", field=name[:200], amount=amount)
            continue
        if what == LAST_USED:
            _note_use(key, datetime.fromtimestamp(amount, UTC))
        elif what in AMOUNTS:
            counted = by_place.setdefault(place, {})
            counted[what] = counted.get(what, 0) + amount
    tenants = dict(Tenant.objects.filter(slug__in={place[0] for place in by_place}).values_list("slug", "pk"))
    for (tenant, persona, key, day), added in by_place.items():
        if (tenant_id := tenants.get(tenant)) is None:
            log.warning("usage of a tenant that is no more", tenant=tenant, **added)
            continue
        row, _ = UsageDay.objects.get_or_create(tenant_id=tenant_id, persona=persona, key=key, day=day)
        UsageDay.objects.filter(pk=row.pk).update(**{what: F(what) + amount for what, amount in added.items()})
    return len(by_place)


def _note_use(prefix: str, at: datetime) -> None:
    earlier = Q(last_used_at=None) | Q(last_used_at__lt=at)
    ApiKey.objects.filter(earlier, prefix=prefix).update(last_used_at=at)


def usage_of(tenant: Tenant, since: date | None = None, until: date | None = None) -> QuerySet[UsageDay]:
    """The tenant's usage by persona, key and day, from `since` to `until` (UTC, both included), the newest first."""
    rows = UsageDay.objects.filter(tenant=tenant)
    if since is not None:
        rows = rows.filter(day__gte=since)
    if until is not None:
        rows = rows.filter(day__lte=until)
    return rows


def tokens_spent(tenant: str, key: str | None, today: date) -> tuple[int, int]:
    """Tokens used by a tenant (a slug), or by one key (a prefix) of it, today and in today's month.

    What has not reached the database counts too; while a batch is on its way it may count twice, which errs on the
    safe side. Raises redis.RedisError, django.db.Error.
    """
    in_day = in_month = 0
    for hash_name in (PENDING, MOVING):
        waiting: Any = valkey().hgetall(hash_name)
        for name, amount in waiting.items():
            if name == _ID.encode():
                continue
            owner, _, prefix, day, what = json.loads(name)
            if owner == tenant and key in (None, prefix) and what in ("prompt_tokens", "completion_tokens"):
                in_day += int(amount) if day == today.isoformat() else 0
                in_month += int(amount) if day[:7] == today.isoformat()[:7] else 0
    rows = UsageDay.objects.filter(tenant__slug=tenant, day__gte=today.replace(day=1), day__lte=today)
    if key is not None:
        rows = rows.filter(key=key)
    for day, tokens in rows.values_list("day").annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens"))):
        in_month += tokens
        in_day += tokens if day == today else 0
    return in_day, in_month
