"""What was used, counted in this process and handed on to Valkey twice a second: no write per request anywhere.

inference/usage.py moves it into the database. A batch that could not be delivered keeps its name and is sent again
under it, so that it counts once whether or not it had arrived; until Valkey is back, counts wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from inference.gateway.cancelling import cancel
from inference.usage import LAST_USED, PENDING, field_name

log = structlog.get_logger("gateway")

FLUSH_EVERY_S = 0.5
TIMEOUT_S = 2.0
# Beyond it, what comes new is counted for its tenant only: the sum stays right and memory bounded.
MAX_COUNTED = 50_000

_SCRIPT = """
local batch = cjson.decode(ARGV[1])
if not redis.call('SET', 'steerguard:usage:said:' .. batch.id, 1, 'NX', 'EX', 3600) then
  return 0
end
for _, item in ipairs(batch.add) do
  redis.call('HINCRBY', KEYS[1], item[1], item[2])
end
for _, item in ipairs(batch.latest) do
  if item[2] > (tonumber(redis.call('HGET', KEYS[1], item[1])) or 0) then
    redis.call('HSET', KEYS[1], item[1], item[2])
  end
end
return 1
"""


@dataclass(slots=True)
class Amounts:
    """What requests took. The names are columns of inference.models.UsageDay."""

    requests: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    steered_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def add(self, more: Amounts) -> None:
        self.requests += more.requests
        self.failures += more.failures
        self.prompt_tokens += more.prompt_tokens
        self.cached_prompt_tokens += more.cached_prompt_tokens
        self.completion_tokens += more.completion_tokens
        self.steered_tokens += more.steered_tokens


_NAMES = tuple(field.name for field in fields(Amounts))
_amounts_of = attrgetter(*_NAMES)


def read_usage(usage: Mapping[str, Any]) -> Amounts:
    """An engine's `usage`, of chat, completions and embeddings or of responses, whatever is missing being 0."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    steering = usage.get("steering")
    return Amounts(
        prompt_tokens=_count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        cached_prompt_tokens=_count(details, "cached_tokens"),
        completion_tokens=_count(usage, "completion_tokens") or _count(usage, "output_tokens"),
        steered_tokens=_count(steering, "prompt_tokens") + _count(steering, "response_tokens"),
    )


def _count(values: object, name: str) -> int:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class UsageBook:
    """Belongs to one event loop."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(
            redis_url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
        )
        self._script = self._redis.register_script(_SCRIPT)
        self._counted: dict[tuple[str, str, str, str], Amounts] = {}
        self._last_used: dict[str, int] = {}
        self._unsent: dict[str, Any] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._is_away = False

    def count(self, tenant: str, persona: str, key: str, day: str, amounts: Amounts) -> None:
        """`persona` is a slug, empty for the base model; `key` a prefix, empty for the dashboard; `day` 2026-12-01."""
        place = (tenant, persona, key, day)
        if (counted := self._counted.get(place)) is None:
            if len(self._counted) >= MAX_COUNTED:
                place = (tenant, "", "", day)
            counted = self._counted.setdefault(place, Amounts())
        counted.add(amounts)
        self._flush_regularly()

    def note_use(self, key: str) -> None:
        """The key with this prefix has been used now."""
        if key in self._last_used or len(self._last_used) < MAX_COUNTED:
            self._last_used[key] = int(time.time())
        self._flush_regularly()

    async def flush(self) -> None:
        """Hand on everything counted up to now. Raises RedisError, OSError; what was not delivered is kept."""
        if self._unsent is not None:
            await self._send(self._unsent)
            self._unsent = None
        if self._counted or self._last_used:
            self._unsent = self._close_batch()
            await self._send(self._unsent)
            self._unsent = None

    async def close(self) -> None:
        if self._flushing is not None:
            await cancel(self._flushing)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.flush()
        except (RedisError, OSError) as error:
            lost = sum(amounts.requests for amounts in self._counted.values())
            log.error("usage not counted", requests=lost, undelivered=self._unsent is not None, error=repr(error))
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    def _close_batch(self) -> dict[str, Any]:
        counted, self._counted = self._counted, {}
        last_used, self._last_used = self._last_used, {}
        return {
            "id": secrets.token_hex(8),
            "add": [
                [field_name(*place, name), amount]
                for place, amounts in counted.items()
                for name, amount in zip(_NAMES, _amounts_of(amounts), strict=True)
                if amount
            ],
            "latest": [[field_name("", "", key, "", LAST_USED), at] for key, at in last_used.items()],
        }

    async def _send(self, batch: Mapping[str, Any]) -> None:
        await self._script(keys=[PENDING], args=[json.dumps(batch, separators=(",", ":"))])

    def _flush_regularly(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._keep_flushing(), name="gateway-usage")

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            try:
                await self.flush()
                self._is_away = False
            except (RedisError, OSError) as error:
                if not self._is_away:
                    log.warning("usage waits for Valkey", error=str(error) or repr(error))
                self._is_away = True
