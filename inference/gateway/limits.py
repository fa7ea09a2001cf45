"""Limits of tenants and keys, kept together by all gateways in Valkey: taken before a request, corrected after it.

What a request may use is reserved before an engine is asked, from every limit of its tenant and of its key or from
none, and what it did use takes the reservation's place afterwards: requests that run at once can't go past a limit
together. `limits.lua` does it in one step; the requests that come while a step is under way share the next one, and
settlements ride along, so that a busy gateway makes few round trips. docs/decisions/0006-limits.md has the reasons.

A minute is a sliding window of seconds: no 60 s hold more than a limit. Days and months are UTC's.
"""

from __future__ import annotations

import asyncio
import calendar
import contextlib
import json
import math
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from inference.gateway.directory import Key, Limits
from inference.gateway.errors import LimitsUnavailable
from inference.gateway.limit_words import rate_limit_headers, refusal
from inference.gateway.subjects import Subject, subjects_of

log = structlog.get_logger("gateway")

SCRIPT = Path(__file__).with_name("limits.lua").read_text()

CONNECT_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 2.0
# For how long the slot and the reservation of a gateway that died stay taken.
LEASE_S = 30.0
RENEW_EVERY_S = LEASE_S / 3
# Settlements wait this long for a batch to ride in, where nobody may be waiting for the slot they free.
SETTLE_WITHIN_S = 0.05
RETRY_EVERY_S = 0.5
MAX_BATCH = 128  # Valkey serves nobody else during a batch
MAX_UNSETTLED = 10_000
CLOSE_TIMEOUT_S = 2.0

_NOT_BEGUN = (-1, -1)  # what a day and a month begin with, where nobody has asked the database

T = TypeVar("T")

Spent = Callable[[str, str | None, datetime], Awaitable[tuple[int, int]]]
"""(tenant slug, key prefix or None for the whole tenant, now) -> tokens used on that day and in that month."""


@dataclass(slots=True)
class _Ask:
    subjects: Sequence[Subject]
    leases: Sequence[str]
    tokens: int
    answer: asyncio.Future[tuple[int, list[Any]]]
    began: dict[str, tuple[int, int]] = field(default_factory=dict)

    def as_json(self) -> list[Any]:
        return [
            self.tokens,
            [
                [[subject.name, *subject.maxima, *self.began.get(subject.name, _NOT_BEGUN)], lease]
                for subject, lease in zip(self.subjects, self.leases, strict=True)
            ],
        ]


@dataclass(frozen=True, slots=True)
class Grant:
    """What was taken for a request: `tokens` from each subject's limits, in the window's `second`."""

    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    second: int = 0
    subjects: Sequence[Subject] = ()
    leases: Sequence[str] = ()


UNLIMITED = Grant()


class Limiter:
    """Belongs to one event loop. `clock` gives seconds since the epoch; without it, windows go by Valkey's clock."""

    def __init__(self, redis_url: str, *, spent: Spent, clock: Callable[[], float] | None = None) -> None:
        self._redis = Redis.from_url(
            redis_url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._script = self._redis.register_script(SCRIPT)
        self._spent = spent
        self._clock = clock
        self._id = secrets.token_hex(6)
        self._serial = 0
        self._asks: deque[_Ask] = deque()
        self._settlements: deque[list[Any]] = deque(maxlen=MAX_UNSETTLED)
        self._unsent: deque[tuple[str, list[list[Any]]]] = deque(maxlen=MAX_UNSETTLED // MAX_BATCH)
        self._held: dict[str, list[list[str]]] = {}  # leases that run, by request
        self._reading: dict[str, asyncio.Future[tuple[int, int]]] = {}
        self._due: deque[str] = deque()  # requests whose leases are to be renewed
        self._committing: asyncio.Task[None] | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Settle what is left, if Valkey is there, and let go of the connection."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._settling is not None:
            self._settling.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._settlements:
                    self._commit_soon()
                if self._committing is not None:
                    await self._committing
        await self._redis.aclose()

    async def admit(self, key: Key | None, tenant: str, tenant_limits: Limits, tokens: int) -> Grant:
        """Take one request of at most `tokens` from the limits of the tenant and of `key` (None: no key's).

        Whoever has a grant settles it. Raises LimitReached, and LimitsUnavailable where there are limits that can't
        be looked up. Without limits, nothing is asked.
        """
        subjects = subjects_of(key, tenant, tenant_limits)
        if not subjects:
            return UNLIMITED
        self._serial += 1
        request = f"{self._id}-{self._serial}"
        now = self._now()
        leases = [_lease(request, subject.limits, tokens, now) for subject in subjects]
        loop = asyncio.get_running_loop()
        began: dict[str, tuple[int, int]] = {}
        while True:
            ask = _Ask(subjects, leases, tokens, loop.create_future(), began)
            self._asks.append(ask)
            self._commit_soon()
            second, result = await ask.answer
            if result[0] != 2:
                break
            # Valkey has not counted this day or month of the subject's yet: the database knows what is used of it.
            subject = subjects[result[1] - 1]
            began[subject.name] = await self._spent_by(subject, now)
        if result[0] == 0:
            _, index, limit, wait_ms, used, seen = result
            raise refusal(subjects[index - 1], limit, wait_ms, used, tokens, rate_limit_headers(subjects, seen))
        if any(leases):
            self._hold(request, subjects, leases)
        return Grant(rate_limit_headers(subjects, result[1]), tokens, second, subjects, leases)

    async def _spent_by(self, subject: Subject, now: datetime) -> tuple[int, int]:
        """What the database says, asked once for all who want to know it now."""
        if (reading := self._reading.get(subject.name)) is None:
            reading = asyncio.ensure_future(self._spent(subject.tenant, subject.prefix, now))
            self._reading[subject.name] = reading
            reading.add_done_callback(lambda _: self._reading.pop(subject.name, None))
        return await asyncio.shield(reading)

    def settle(self, grant: Grant, tokens: int, *, counts: bool = True) -> None:
        """Put the `tokens` that were used in the place of those that `grant` reserved; returns at once.

        Not `counts`: the request itself is given back too.
        """
        at_once = False
        for subject, lease in zip(grant.subjects, grant.leases, strict=True):
            limits = subject.limits
            gives_back = not counts and limits.requests_per_minute is not None
            if lease:
                self._held.pop(lease.partition(":")[0], None)
            if lease or gives_back or limits.tokens_per_minute is not None:
                counts_tokens = limits.tokens_per_minute is not None
                self._settlements.append(
                    [subject.name, lease, grant.tokens, tokens, grant.second, int(counts_tokens), int(gives_back)]
                )
                at_once = at_once or limits.concurrent_requests is not None
        if at_once or len(self._settlements) >= MAX_BATCH:
            self._commit_soon()
        elif self._settlements and self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_WITHIN_S, self._commit_soon)

    def _commit_soon(self) -> None:
        """One batch at a time: whatever comes meanwhile shares the next one."""
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit(), name="gateway-limits")

    async def _commit(self) -> None:
        try:
            while self._asks or self._settlements or self._due:
                await self._send_unsent()
                asks = _take(self._asks)
                settlements = _take(self._settlements)
                # One that has been settled since is held no more, and must not come back to life.
                renewals = [lease for request in _take(self._due) for lease in self._held.get(request, ())]
                await self._send(asks, settlements, renewals)
        finally:
            self._committing = None

    async def _send(self, asks: list[_Ask], settlements: list[list[Any]], renewals: list[list[str]]) -> None:
        batch_id = secrets.token_hex(8)
        try:
            admit = [ask.as_json() for ask in asks]
            answer = await self._call(batch_id, settle=settlements, renew=renewals, admit=admit)
        except (RedisError, OSError, ValueError) as error:
            log.warning("limits can't be looked up", error=str(error) or repr(error))
            if settlements:
                self._unsent.append((batch_id, settlements))
                self._retry_later()
            for ask in asks:
                if not ask.answer.done():
                    ask.answer.set_exception(LimitsUnavailable())
            return
        for ask, result in zip(asks, answer[1], strict=False):
            if not ask.answer.done():
                ask.answer.set_result((answer[0], result))
            elif result[0] == 1:
                # Whoever asked has gone away meanwhile.
                self.settle(Grant({}, ask.tokens, answer[0], ask.subjects, ask.leases), 0, counts=False)

    async def _send_unsent(self) -> None:
        """What could not be delivered, under its old name: if it did arrive, it counts once all the same."""
        while self._unsent:
            batch_id, settlements = self._unsent[0]
            try:
                await self._call(batch_id, settle=settlements)
            except (RedisError, OSError, ValueError):
                self._retry_later()
                return
            self._unsent.popleft()

    def _retry_later(self) -> None:
        asyncio.get_running_loop().call_later(RETRY_EVERY_S, self._retry)

    def _retry(self) -> None:
        if self._unsent and self._committing is None:
            self._committing = asyncio.create_task(self._commit_unsent(), name="gateway-limits-retry")

    async def _commit_unsent(self) -> None:
        try:
            await self._send_unsent()
        finally:
            self._committing = None
        if self._asks or self._settlements:
            self._commit_soon()

    async def _call(
        self,
        batch_id: str,
        *,
        settle: Sequence[Any] = (),
        renew: Sequence[Any] = (),
        admit: Sequence[Any] = (),
    ) -> list[Any]:
        now = self._now()
        batch: dict[str, Any] = {
            "id": batch_id,
            "day": _day(now),
            "month": _month(now),
            "day_rest_ms": _rest_of_day_ms(now),
            "month_rest_ms": _rest_of_month_ms(now),
            "lease_ms": int(LEASE_S * 1000),
            "settle": settle,
            "renew": renew,
            "admit": admit,
        }
        if self._clock is not None:
            batch["now_ms"] = int(self._clock() * 1000)
        text = json.dumps(batch, separators=(",", ":"))
        try:
            answer = await self._script(args=[text])
        except RedisTimeoutError:
            raise
        except RedisConnectionError:
            # A kept connection may have died with a Valkey that is long back; the batch's id makes repeating harmless.
            answer = await self._script(args=[text])
        parsed: list[Any] = json.loads(answer)
        return parsed

    def _hold(self, request: str, subjects: Sequence[Subject], leases: Sequence[str]) -> None:
        self._held[request] = [[subject.name, lease] for subject, lease in zip(subjects, leases, strict=True) if lease]
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_regularly(), name="gateway-leases")

    async def _renew_regularly(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            self._due.extend(self._held)
            if self._due:
                self._commit_soon()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(time.time() if self._clock is None else self._clock(), UTC)


def _take(queue: deque[T]) -> list[T]:
    return [queue.popleft() for _ in range(min(MAX_BATCH, len(queue)))]


def _lease(request: str, limits: Limits, tokens: int, now: datetime) -> str:
    """What stands for the running request among the subject's; empty for a subject whose limits need none."""
    day = _day(now) if limits.tokens_per_day is not None else 0
    month = _month(now) if limits.tokens_per_month is not None else 0
    if not (day or month) and limits.concurrent_requests is None:
        return ""
    return f"{request}:{tokens}:{day}:{month}"


def _day(now: datetime) -> int:
    return int(now.timestamp()) // 86400


def _month(now: datetime) -> int:
    return now.year * 12 + now.month


def _rest_of_day_ms(now: datetime) -> int:
    tomorrow = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return math.ceil((tomorrow - now).total_seconds() * 1000)


def _rest_of_month_ms(now: datetime) -> int:
    days_left = calendar.monthrange(now.year, now.month)[1] - now.day
    return _rest_of_day_ms(now) + days_left * 86400 * 1000
