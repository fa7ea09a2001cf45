"""Usage from Valkey into the database: each count once, wherever the move is interrupted."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pytest
import redis
from django.conf import settings
from django.utils import timezone
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inference import tasks, usage
from inference.gateway import usage as gateway_usage
from inference.gateway.usage import Amounts, UsageBook, read_usage
from inference.models import UsageBatch, UsageDay
from personas import services
from personas.models import ApiKey, Tenant
from tests.waiting import PATIENCE_S, eventually

TODAY = "2026-12-01"
DAY = date(2026, 12, 1)


@pytest.fixture(autouse=True)
def _counters(valkey: redis.Redis) -> Iterator[None]:
    """Nothing is counted yet."""
    yield


def count(*places: tuple[str, str, str, str], **amounts: int) -> None:
    """As a gateway that counts, hands on and stops."""

    async def one_life() -> None:
        book = UsageBook(settings.REDIS_URL)
        for place in places:
            book.count(*place, Amounts(**amounts))
        await book.close()

    asyncio.run(one_life())


def totals() -> list[tuple[str, str, str, int, int]]:
    rows = UsageDay.objects.order_by("tenant__slug", "persona", "key")
    return [(row.tenant.slug, row.persona, row.key, row.requests, row.prompt_tokens) for row in rows]


NAMES = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "input_tokens", "prompt_tokens_details", "cached_tokens", "steering"]
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()

SUPPORT = ("acme", "support", "abcd1234", TODAY)


class Crash(Exception):
    """The worker is killed here."""


class TestAMove:
    def test_adds_to_what_is_there(self, acme: Tenant, globex: Tenant) -> None:
        for _ in range(2):
            count(SUPPORT, ("globex", "", "", TODAY), requests=1, prompt_tokens=10)
            usage.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 2, 20), ("globex", "", "", 2, 20)]

    def test_of_nothing_writes_nothing(self, acme: Tenant) -> None:
        assert usage.move_usage() == 0
        assert not UsageBatch.objects.exists()

    def test_is_what_the_schedule_runs(self, acme: Tenant) -> None:
        count(SUPPORT, requests=1)
        tasks.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 1, 0)]
        assert settings.CELERY_BEAT_SCHEDULE["move-usage"]["task"] == tasks.move_usage.name

    def test_leaves_out_a_tenant_that_is_no_more(self, acme: Tenant) -> None:
        count(SUPPORT, ("gone", "", "", TODAY), requests=1)
        usage.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 1, 0)]

    def test_says_when_a_key_was_last_used_and_never_an_earlier_time(self, acme: Tenant, valkey: redis.Redis) -> None:
        key = services.issue_api_key(tenant=acme, name="app")[0]
        for at in (1_800_000_000, 1_700_000_000):
            valkey.hset(usage.PENDING, usage.field_name("", "", key.prefix, "", usage.LAST_USED), at)
            usage.move_usage()
        assert ApiKey.objects.get().last_used_at == datetime.fromtimestamp(1_800_000_000, UTC)

    def test_is_not_held_up_by_what_it_can_not_read(self, acme: Tenant, valkey: redis.Redis) -> None:
        valkey.hset(usage.PENDING, mapping={"nonsense": 1, '["acme","a","b","someday","requests"]': 1})
        count(("acme", "p" * 100, "k" * 100, TODAY), SUPPORT, requests=1)
        usage.move_usage()
        assert totals() == [("acme", "p" * 63, "k" * 8, 1, 0), ("acme", "support", "abcd1234", 1, 0)]

    def test_forgets_ids_of_long_ago(self, acme: Tenant) -> None:
        old = UsageBatch.objects.create(pk="00000000-0000-0000-0000-000000000001")
        UsageBatch.objects.update(applied_at=timezone.now() - 2 * usage.KEEP_BATCHES)
        count(SUPPORT, requests=1)
        usage.move_usage()
        assert not UsageBatch.objects.filter(pk=old.pk).exists()


@pytest.mark.django_db(transaction=True)
class TestAMoveThatIsInterrupted:
    @pytest.mark.parametrize("point", ["after it took", "while it added", "after it added", "after it dropped"])
    def test_counts_once(self, acme: Tenant, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        def crashes(function: Callable[..., Any], *, first: bool) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                if not first:
                    function(*args)
                raise Crash

            return call

        count(SUPPORT, requests=3, prompt_tokens=10)
        with monkeypatch.context() as patched:
            if point == "after it took":
                patched.setattr(usage, "apply_batch", crashes(usage.apply_batch, first=True))
            elif point == "while it added":
                patched.setattr(usage, "_add", crashes(usage._add, first=False))
            elif point == "after it added":
                patched.setattr(usage, "drop_batch", crashes(usage.drop_batch, first=True))
            else:
                patched.setattr(usage, "drop_batch", crashes(usage.drop_batch, first=False))
            with pytest.raises(Crash):
                usage.move_usage()
        count(SUPPORT, requests=1)  # gateways go on
        for _ in range(3):
            usage.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 4, 10)]

    def test_by_another_that_runs_beside_it_counts_once(self, acme: Tenant) -> None:
        count(SUPPORT, requests=1)
        slow = usage.take_batch()
        assert slow is not None
        usage.move_usage()
        count(SUPPORT, requests=1)
        later = usage.take_batch()
        assert later is not None and later[0] != slow[0]
        assert usage.apply_batch(*slow) == 0
        usage.drop_batch(slow[0])  # must leave the later one alone
        usage.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 2, 0)]

    def test_by_many_at_once_counts_once(self, acme: Tenant) -> None:
        count(SUPPORT, requests=7)
        movers = [threading.Thread(target=_move_and_hang_up) for _ in range(4)]
        for mover in movers:
            mover.start()
        for mover in movers:
            mover.join()
        usage.move_usage()
        assert totals() == [("acme", "support", "abcd1234", 7, 0)]


def _move_and_hang_up() -> None:
    from django.db import connections

    try:
        usage.move_usage()
    finally:
        connections.close_all()


class TestABook:
    async def test_writes_twice_a_second_however_much_is_counted(
        self, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        book = UsageBook(settings.REDIS_URL)
        sent = _watch(book, monkeypatch)
        for _ in range(1000):
            book.count(*SUPPORT, Amounts(requests=1))
        await book.close()
        assert len(sent) == 1
        assert valkey.hgetall(usage.PENDING) == {usage.field_name(*SUPPORT, "requests").encode(): b"1000"}

    async def test_hands_on_by_itself(self, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(gateway_usage, "FLUSH_EVERY_S", 0.01)
        book = UsageBook(settings.REDIS_URL)
        book.count(*SUPPORT, Amounts(requests=1))
        await asyncio.to_thread(eventually, lambda: valkey.exists(usage.PENDING))
        await book.close()

    async def test_counts_once_where_the_answer_was_lost(
        self, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        book = UsageBook(settings.REDIS_URL)
        script = book._script

        async def loses_the_answer(**call: Any) -> None:
            await script(**call)
            raise redis.exceptions.ConnectionError

        book.count(*SUPPORT, Amounts(requests=1))
        with monkeypatch.context() as patched:
            patched.setattr(book, "_script", loses_the_answer)
            for _ in range(3):
                with pytest.raises(redis.RedisError):
                    await book.flush()
                book.count(*SUPPORT, Amounts(requests=1))
        await book.close()
        assert valkey.hgetall(usage.PENDING) == {usage.field_name(*SUPPORT, "requests").encode(): b"4"}

    async def test_ends_although_a_cancellation_was_swallowed(
        self, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As redis-py does with one that meets it while it connects."""
        monkeypatch.setattr(gateway_usage, "FLUSH_EVERY_S", 0.0)
        book = UsageBook(settings.REDIS_URL)
        script, flushing = book._script, asyncio.Event()

        async def swallows_once(**call: Any) -> Any:
            if not flushing.is_set():
                flushing.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            return await script(**call)

        monkeypatch.setattr(book, "_script", swallows_once)
        book.count(*SUPPORT, Amounts(requests=1))
        await flushing.wait()
        async with asyncio.timeout(PATIENCE_S):
            await book.close()
        assert valkey.hgetall(usage.PENDING) == {usage.field_name(*SUPPORT, "requests").encode(): b"1"}

    async def test_waits_for_valkey_in_bounded_memory(
        self, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gateway_usage, "MAX_COUNTED", 3)
        book = UsageBook(settings.REDIS_URL)
        with monkeypatch.context() as patched:
            patched.setattr(book, "_script", _away)
            for at in range(10):
                book.count("acme", f"persona-{at}", "", TODAY, Amounts(requests=1))
            with pytest.raises(redis.RedisError):
                await book.flush()
            for at in range(10):
                book.count("acme", f"persona-{at}", "", TODAY, Amounts(requests=1))
            assert len(book._counted) <= 4
        await book.close()
        assert sum(int(amount) for amount in valkey.hvals(usage.PENDING)) == 20


async def _away(**call: Any) -> None:
    raise redis.exceptions.ConnectionError


def _watch(book: UsageBook, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    sent: list[Any] = []
    script = book._script

    async def watched(**call: Any) -> Any:
        sent.append(call)
        return await script(**call)

    monkeypatch.setattr(book, "_script", watched)
    return sent


class TestUsageOf:
    def test_is_the_tenants_alone_between_two_days(self, acme: Tenant, globex: Tenant) -> None:
        for tenant in ("acme", "globex"):
            count(*((tenant, "", "", f"2026-12-0{day}") for day in (1, 2, 3)), requests=1)
        usage.move_usage()
        found = usage.usage_of(acme, date(2026, 12, 2), date(2026, 12, 3))
        assert [(row.tenant, row.day.day) for row in found] == [(acme, 3), (acme, 2)]
        assert usage.usage_of(acme).count() == 3


class TestTokensSpent:
    def test_are_those_of_the_day_and_the_month_moved_or_not(self, acme: Tenant, globex: Tenant) -> None:
        earlier = ("acme", "", "abcd1234", "2026-12-07")
        for move in (True, False):
            count(
                ("acme", "support", "abcd1234", "2026-12-08"),
                ("acme", "", "", "2026-12-08"),
                earlier,
                ("acme", "", "abcd1234", "2026-11-30"),
                ("globex", "", "abcd1234", "2026-12-08"),
                prompt_tokens=10,
                completion_tokens=1,
                requests=1,
            )
            if move:
                usage.move_usage()
        today = date(2026, 12, 8)
        assert usage.tokens_spent("acme", None, today) == (44, 66)
        assert usage.tokens_spent("acme", "abcd1234", today) == (22, 44)
        usage.take_batch()
        assert usage.tokens_spent("acme", None, today) == (44, 66)


class TestReadUsage:
    def test_knows_both_of_openais_shapes(self) -> None:
        chat = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
        responses = {"input_tokens": 5, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}
        assert read_usage(chat) == read_usage(responses) == Amounts(0, 0, 5, 2, 3, 0)

    @hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
    @given(st.dictionaries(NAMES, VALUES | st.dictionaries(NAMES, VALUES)))
    def test_takes_whatever_an_engine_sends(self, sent: dict[str, Any]) -> None:
        assert read_usage(sent).tokens >= 0
