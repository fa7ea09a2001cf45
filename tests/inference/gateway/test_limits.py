"""The limiter against a real Valkey: all limits of a request at once, windows that slide, leases, and shared trips."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.conf import settings
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inference.gateway import limits as limits_module
from inference.gateway.directory import NO_LIMITS, Key, Limits
from inference.gateway.errors import LimitReached, LimitsUnavailable
from inference.gateway.limit_words import written_duration
from inference.gateway.limits import UNLIMITED, Grant, Limiter
from tests.waiting import eventually

NOON = datetime(2026, 12, 1, 12, 0, 0, 300_000, UTC)
NOBODY = "unix:///nonexistent/valkey.sock"


class Clock:
    """Seconds since the epoch, as told."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now.timestamp()

    def go(self, **by: float) -> None:
        self.now += timedelta(**by)


@pytest.fixture
def clock(valkey: redis.Redis) -> Clock:
    return Clock()


@pytest.fixture
async def make_limiter(clock: Clock) -> AsyncIterator[Callable[..., Limiter]]:
    made: list[Limiter] = []

    def make(url: str = settings.REDIS_URL, spent: tuple[int, int] = (0, 0)) -> Limiter:
        async def read_spent(tenant: str, key: str | None, now: datetime) -> tuple[int, int]:
            return spent

        made.append(Limiter(url, spent=read_spent, clock=clock))
        return made[-1]

    yield make
    for limiter in made:
        await limiter.close()


@pytest.fixture
async def limiter(make_limiter: Callable[..., Limiter]) -> Limiter:
    return make_limiter()


def key_with(**limits: int) -> Key:
    return Key("acme", "app", "abcd1234", "0" * 64, None, limits=Limits(**limits))


async def admit(limiter: Limiter, tokens: int = 1, *, key: Key | None = None, **tenant: int) -> Grant:
    return await limiter.admit(key, "acme", Limits(**tenant), tokens)


async def admitted(limiter: Limiter, times: int, tokens: int = 1, *, key: Key | None = None, **tenant: int) -> int:
    """How many of `times` at once are let in."""
    asks = [admit(limiter, tokens, key=key, **tenant) for _ in range(times)]
    answers = await asyncio.gather(*asks, return_exceptions=True)
    assert all(isinstance(answer, Grant | LimitReached) for answer in answers), answers
    return sum(isinstance(answer, Grant) for answer in answers)


async def refusal(limiter: Limiter, tokens: int = 1, *, key: Key | None = None, **tenant: int) -> LimitReached:
    with pytest.raises(LimitReached) as refused:
        await admit(limiter, tokens, key=key, **tenant)
    return refused.value


async def until(claim: Callable[[], bool]) -> None:
    """Fails unless `claim` comes true in time."""
    await asyncio.to_thread(eventually, claim)


def count_trips(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that are sent from now on."""
    batches: list[Any] = []
    script = limiter._script

    async def counted(*, args: list[str]) -> Any:
        batches.append(json.loads(args[0]))
        return await script(args=args)

    monkeypatch.setattr(limiter, "_script", counted)
    return batches


class TestAMinute:
    async def test_holds_no_more_than_the_limit_however_many_come_at_once(self, limiter: Limiter) -> None:
        assert await admitted(limiter, 50, requests_per_minute=7) == 7

    async def test_slides_so_that_no_60_seconds_hold_two_bursts(self, limiter: Limiter, clock: Clock) -> None:
        clock.now = NOON.replace(second=55)
        assert await admitted(limiter, 10, requests_per_minute=10) == 10
        clock.go(seconds=59)  # another minute by the clock on the wall
        assert await admitted(limiter, 10, requests_per_minute=10) == 0
        clock.go(seconds=2)
        assert await admitted(limiter, 20, requests_per_minute=10) == 10

    async def test_lets_in_again_when_retry_after_says(self, limiter: Limiter, clock: Clock) -> None:
        await admit(limiter, requests_per_minute=2)
        clock.go(seconds=20)
        await admit(limiter, requests_per_minute=2)
        wait_s = (await refusal(limiter, requests_per_minute=2)).retry_after_s
        assert wait_s is not None and 39 < wait_s <= 41
        clock.go(seconds=wait_s - 2)
        await refusal(limiter, requests_per_minute=2)
        clock.go(seconds=2)
        await admit(limiter, requests_per_minute=2)

    async def test_of_tokens_waits_until_enough_have_left_it(self, limiter: Limiter, clock: Clock) -> None:
        for _ in range(3):
            await admit(limiter, 30, tokens_per_minute=100)
            clock.go(seconds=10)
        wait_s = (await refusal(limiter, 50, tokens_per_minute=100)).retry_after_s
        assert wait_s is not None and 40 < wait_s <= 41  # the first and the second have to go
        clock.go(seconds=wait_s)
        await admit(limiter, 50, tokens_per_minute=100)

    async def test_begins_anew_after_a_long_rest(self, limiter: Limiter, clock: Clock, valkey: redis.Redis) -> None:
        for _ in range(70):
            await admit(limiter, requests_per_minute=100)
            clock.go(seconds=1)
        clock.go(days=1)
        assert await admitted(limiter, 120, requests_per_minute=100) == 100
        assert len(valkey.hgetall("steerguard:limits:acme")) == 4

    @hypothesis_settings(
        deadline=None,
        max_examples=30,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(steps=st.lists(st.tuples(st.sampled_from([0, 0.4, 1, 7, 31]), st.integers(1, 40)), max_size=40))
    async def test_never_holds_more_than_its_limit(self, valkey: redis.Redis, steps: list[tuple[float, int]]) -> None:
        valkey.flushall()
        clock = Clock()

        async def nothing(tenant: str, key: str | None, now: datetime) -> tuple[int, int]:
            return 0, 0

        limiter = Limiter(settings.REDIS_URL, spent=nothing, clock=clock)
        taken: list[tuple[float, int]] = []
        for seconds, tokens in steps:
            clock.go(seconds=seconds)
            inside = sum(amount for at, amount in taken if at > clock() - 60)
            lately = sum(amount for at, amount in taken if at > clock() - 62)
            try:
                await admit(limiter, tokens, tokens_per_minute=100)
            except LimitReached:
                assert lately + tokens > 100
            else:
                assert inside + tokens <= 100
                taken.append((clock(), tokens))
        await limiter.close()


class TestSeveralLimits:
    async def test_of_tenant_and_key_hold_together(self, limiter: Limiter) -> None:
        assert await admitted(limiter, 9, key=key_with(requests_per_minute=3), requests_per_minute=5) == 3
        assert await admitted(limiter, 9, requests_per_minute=5) == 2

    async def test_take_nothing_where_one_refuses(self, limiter: Limiter) -> None:
        generous: dict[str, Any] = {"requests_per_minute": 5, "tokens_per_minute": 500, "tokens_per_day": 5000}
        narrow = key_with(tokens_per_minute=10)
        assert await admitted(limiter, 20, 50, key=narrow, concurrent_requests=5, **generous) == 0
        assert await admitted(limiter, 20, 50, concurrent_requests=5, **generous) == 5

    async def test_name_the_one_that_lasts_longest_and_whose_it_is(self, limiter: Limiter) -> None:
        key = key_with(tokens_per_day=100)
        await admit(limiter, 60, key=key, requests_per_minute=1)
        error = await refusal(limiter, 60, key=key, requests_per_minute=1)
        assert "tokens per day" in error.message and "key 'app' (sg_abcd1234_…)" in error.message
        assert (error.status, error.type, error.code) == (429, "insufficient_quota", "insufficient_quota")
        assert error.retry_after_s == 12 * 3600
        assert error.headers["x-should-retry"] == "false"

    async def test_say_when_a_request_can_never_fit(self, limiter: Limiter) -> None:
        error = await refusal(limiter, 101, tokens_per_minute=100, requests_per_minute=1)
        assert "ever allow" in error.message and "tenant 'acme'" in error.message
        assert (error.retry_after_s, error.type, error.code) == (None, "tokens", "rate_limit_exceeded")

    async def test_are_not_asked_for_where_there_are_none(self, make_limiter: Callable[..., Limiter]) -> None:
        assert await make_limiter(NOBODY).admit(key_with(), "acme", NO_LIMITS, 10**9) is UNLIMITED


class TestHeaders:
    async def test_are_those_of_the_tighter_one(self, limiter: Limiter) -> None:
        key = key_with(requests_per_minute=3, tokens_per_minute=1000)
        grant = await admit(limiter, 100, key=key, requests_per_minute=100, tokens_per_minute=500)
        assert dict(grant.headers) == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": "2",
            "x-ratelimit-reset-requests": "1m1s",
            "x-ratelimit-limit-tokens": "500",
            "x-ratelimit-remaining-tokens": "400",
            "x-ratelimit-reset-tokens": "1m1s",
        }

    async def test_come_with_a_refusal_too(self, limiter: Limiter) -> None:
        await admit(limiter, requests_per_minute=1)
        error = await refusal(limiter, requests_per_minute=1)
        assert error.headers["x-ratelimit-remaining-requests"] == "0"

    async def test_are_none_without_a_limit_per_minute(self, limiter: Limiter) -> None:
        assert not (await admit(limiter, concurrent_requests=3, tokens_per_day=10)).headers

    @pytest.mark.parametrize(
        ("ms", "written"),
        [
            (0, "0ms"),
            (120, "120ms"),
            (1000, "1s"),
            (1001, "2s"),
            (60_000, "1m0s"),
            (360_000, "6m0s"),
            (3_661_000, "1h1m1s"),
        ],
    )
    def test_write_durations_as_openai_does(self, ms: int, written: str) -> None:
        assert written_duration(ms) == written


class TestSettlement:
    async def test_frees_what_was_not_used(self, limiter: Limiter) -> None:
        limits: dict[str, Any] = {"tokens_per_minute": 100, "tokens_per_day": 100, "tokens_per_month": 100}
        grant = await admit(limiter, 90, **limits)
        await refusal(limiter, 20, **limits)
        limiter.settle(grant, 75)
        await admit(limiter, 20, **limits)
        await refusal(limiter, 10, **limits)

    async def test_charges_what_was_used_beyond_the_estimate(self, limiter: Limiter) -> None:
        limiter.settle(await admit(limiter, 10, tokens_per_minute=100, tokens_per_day=100), 95)
        await refusal(limiter, 10, tokens_per_minute=100)
        await refusal(limiter, 10, tokens_per_day=100)

    async def test_gives_the_request_back_when_it_does_not_count(self, limiter: Limiter) -> None:
        limits: dict[str, Any] = {"requests_per_minute": 1, "tokens_per_minute": 10}
        limiter.settle(await admit(limiter, 10, **limits), 0, counts=False)
        limiter.settle(await admit(limiter, 10, **limits), 0)
        assert (await refusal(limiter, 10, **limits)).type == "requests"

    async def test_of_an_older_minute_leaves_the_current_one_alone(self, limiter: Limiter, clock: Clock) -> None:
        grant = await admit(limiter, 100, tokens_per_minute=100)
        clock.go(seconds=70)
        await admit(limiter, 60, tokens_per_minute=100)
        limiter.settle(grant, 5)
        await admit(limiter, 40, tokens_per_minute=100)
        await refusal(limiter, 1, tokens_per_minute=100)

    async def test_of_yesterday_leaves_today_alone(self, limiter: Limiter, clock: Clock) -> None:
        clock.now = NOON.replace(hour=23, minute=59, second=59)
        grant = await admit(limiter, 100, tokens_per_day=100)
        clock.go(seconds=2)
        await admit(limiter, 60, tokens_per_day=100)
        limiter.settle(grant, 5)
        await refusal(limiter, 41, tokens_per_day=100)

    async def test_whose_answer_was_lost_counts_once(
        self, limiter: Limiter, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_module, "RETRY_EVERY_S", 0.01)
        grant = await admit(limiter, 90, tokens_per_day=100, tokens_per_minute=100)
        script, failures = limiter._script, 2

        async def loses_answers(*, args: list[str]) -> Any:
            nonlocal failures
            answer = await script(args=args)
            if failures:
                failures -= 1
                raise redis.exceptions.ConnectionError("lost")
            return answer

        monkeypatch.setattr(limiter, "_script", loses_answers)
        limiter.settle(grant, 30)
        await until(lambda: not (failures or limiter._unsent or limiter._settlements or limiter._committing))
        counted = valkey.hgetall("steerguard:limits:acme")
        assert (counted[b"dn"], counted[b"tn"]) == (b"30", b"30")


class TestConcurrency:
    async def test_is_what_runs_now(self, limiter: Limiter) -> None:
        grants = [await admit(limiter, concurrent_requests=2) for _ in range(2)]
        error = await refusal(limiter, concurrent_requests=2)
        assert (error.type, error.retry_after_s) == ("requests", 1)
        limiter.settle(grants[0], 0)
        await admit(limiter, concurrent_requests=2)
        await refusal(limiter, concurrent_requests=2)

    async def test_of_a_gateway_that_died_ends_and_so_does_what_it_had_reserved(
        self, make_limiter: Callable[..., Limiter], clock: Clock
    ) -> None:
        limits: dict[str, Any] = {"concurrent_requests": 1, "tokens_per_day": 100, "tokens_per_month": 100}
        await admit(make_limiter(), 100, **limits)
        survivor = make_limiter()
        clock.go(seconds=limits_module.LEASE_S - 1)
        await refusal(survivor, 1, **limits)
        clock.go(seconds=2)
        await admit(survivor, 100, **limits)

    async def test_that_ended_too_early_is_charged_all_the_same(
        self, limiter: Limiter, clock: Clock, valkey: redis.Redis
    ) -> None:
        grant = await admit(limiter, 60, tokens_per_day=100)
        clock.go(seconds=limits_module.LEASE_S + 1)  # Valkey could not be reached to renew it
        await admit(limiter, 1, tokens_per_day=100)
        limiter.settle(grant, 30)
        await until(lambda: valkey.hget("steerguard:limits:acme", "dn") == b"31")

    async def test_is_kept_by_a_gateway_that_lives(
        self, limiter: Limiter, clock: Clock, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_module, "RENEW_EVERY_S", 0.02)
        limits: dict[str, Any] = {"concurrent_requests": 1, "tokens_per_day": 100}
        grant = await admit(limiter, 60, **limits)
        clock.go(seconds=limits_module.LEASE_S - 1)
        ends_ms = (clock() + limits_module.LEASE_S) * 1000
        await until(lambda: valkey.zcount("steerguard:limits:acme:held", ends_ms - 1, "+inf") == 1)
        clock.go(seconds=limits_module.LEASE_S - 1)
        await refusal(limiter, 1, **limits)
        limiter.settle(grant, 10)
        await admit(limiter, 90, **limits)

    async def test_is_given_back_by_one_who_leaves_while_it_asks(self, limiter: Limiter) -> None:
        leaving = asyncio.create_task(admit(limiter, 100, concurrent_requests=1, tokens_per_minute=100))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        await until(lambda: limiter._committing is None)
        await admit(limiter, 100, concurrent_requests=1, tokens_per_minute=100)


class TestADayAndAMonth:
    async def test_end_at_midnight_utc(self, limiter: Limiter, clock: Clock) -> None:
        clock.now = datetime(2026, 12, 31, 23, 59, 0, tzinfo=UTC)
        await admit(limiter, 100, tokens_per_day=100, tokens_per_month=100)
        assert (await refusal(limiter, 1, tokens_per_day=100)).retry_after_s == 60
        assert (await refusal(limiter, 1, tokens_per_month=100)).retry_after_s == 60
        clock.go(seconds=61)
        await admit(limiter, 100, tokens_per_day=100, tokens_per_month=100)

    async def test_of_a_month_outlast_the_day(self, limiter: Limiter, clock: Clock) -> None:
        limiter.settle(await admit(limiter, 60, tokens_per_day=100, tokens_per_month=100), 60)
        clock.go(days=1)
        error = await refusal(limiter, 60, tokens_per_day=100, tokens_per_month=100)
        assert "tokens per month" in error.message
        assert error.retry_after_s == (29 * 24 + 12) * 3600

    async def test_begin_with_what_the_database_knows(
        self, make_limiter: Callable[..., Limiter], valkey: redis.Redis
    ) -> None:
        limiter = make_limiter(spent=(70, 900))
        await admit(limiter, 30, tokens_per_day=100, tokens_per_month=1000)
        await refusal(limiter, 1, tokens_per_day=100, tokens_per_month=1000)
        valkey.flushall()  # a Valkey that forgot everything doesn't make budgets new
        await refusal(limiter, 31, tokens_per_day=100, tokens_per_month=1000)


class TestTrips:
    async def test_are_shared_by_requests_that_come_together(
        self, limiter: Limiter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batches = count_trips(limiter, monkeypatch)
        assert await admitted(limiter, 100, requests_per_minute=1000) == 100
        assert len(batches) == 1

    async def test_carry_the_settlements_along(self, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
        grant = await admit(limiter, 10, tokens_per_minute=100)
        batches = count_trips(limiter, monkeypatch)
        limiter.settle(grant, 5)
        await admit(limiter, 10, tokens_per_minute=100)
        assert [(len(batch["settle"]), len(batch["admit"])) for batch in batches] == [(1, 1)]


class TestWithoutValkey:
    async def test_a_limit_refuses_rather_than_lets_everybody_in(self, make_limiter: Callable[..., Limiter]) -> None:
        with pytest.raises(LimitsUnavailable) as error:
            await admit(make_limiter(NOBODY), requests_per_minute=1)
        assert (error.value.status, error.value.retry_after_s) == (503, 2)

    async def test_what_was_used_is_settled_when_it_is_back(
        self, make_limiter: Callable[..., Limiter], valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits_module, "RETRY_EVERY_S", 0.01)
        limiter = make_limiter()
        grant = await admit(limiter, 90, tokens_per_day=100)
        script, is_away = limiter._script, True

        async def away(*, args: list[str]) -> Any:
            if is_away:
                raise redis.exceptions.ConnectionError("away")
            return await script(args=args)

        monkeypatch.setattr(limiter, "_script", away)
        limiter.settle(grant, 30)
        with pytest.raises(LimitsUnavailable):
            await admit(limiter, 1, tokens_per_day=100)
        is_away = False
        await until(lambda: not limiter._unsent)
        assert valkey.hget("steerguard:limits:acme", "dn") == b"30"
