"""Telling the rest of the system that something changed, once the change is committed.

Two audiences: other processes (gateways drop what they cached) hear the Redis channel `steerguard:changed`;
code in this process that personas must not import (inference starts a reconcile) receives the signal
`changed`. Neither can undo or delay a commit: when Valkey is away that is logged, and periodic re-reading
catches up.
"""

import json
from functools import cache
from typing import Literal

import redis
import structlog
from django.conf import settings
from django.db import transaction
from django.dispatch import Signal
from redis.backoff import NoBackoff
from redis.retry import Retry

CHANNEL = "steerguard:changed"

Kind = Literal["tenant", "key", "vector", "persona", "engine"]

log = structlog.get_logger("changes")

# Sent after the commit with `kind` and `subject` (the other parts of the message).
changed = Signal()


@cache
def valkey() -> redis.Redis:
    """This process's Valkey (or Redis) client. Raises redis.RedisError soon when the server is away."""
    # One retry replaces a connection that went stale; more would hold up every commit while Valkey is away.
    retry = Retry(NoBackoff(), retries=1)
    return redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=5, retry=retry)


def announce(kind: Kind, **subject: str | int | None) -> None:
    """When the current transaction commits, tell everybody that a `kind` changed; `subject` says which."""
    transaction.on_commit(lambda: _publish(kind, subject), robust=True)


def _publish(kind: Kind, subject: dict[str, str | int | None]) -> None:
    try:
        valkey().publish(CHANNEL, json.dumps({"kind": kind, **subject}))
    except redis.RedisError as error:
        # What receivers do needs Valkey too: they would each wait for it in vain.
        log.warning("change not announced", kind=kind, error=str(error))
        return
    for _receiver, failure in changed.send_robust(sender=None, kind=kind, subject=subject):
        if failure is not None:
            log.warning("change not acted upon", kind=kind, error=repr(failure))
