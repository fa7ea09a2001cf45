"""Many who watch one job: read once, nothing missed, nothing doubled."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
import redis
from django.test import Client

from jobs import events, feeds, services
from jobs.database import in_database
from jobs.models import Job
from personas import services as persona_services
from personas.models import ApiKey, Membership, Tenant
from tests.inference.gateway.conftest import Gateway, eventually
from tests.jobs.test_jobs import make, parse
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)

FROM_THE_START = feeds.FROM_THE_START


@pytest.fixture
def job(valkey: redis.Redis, acme: Tenant) -> Job:
    return services.submit(tenant="acme", key_prefix="", kind=Job.Kind.GENERATION, inputs={"model": "support"})[0]


@pytest.fixture
async def teller(job: Job) -> AsyncIterator[Any]:
    async with contextlib.aclosing(events.open_redis()) as teller:
        yield teller


async def tell(teller: Any, job: Job, *texts: str) -> None:
    for text in texts:
        assert await events.append_async(teller, job, "delta", {"text": text}) == "appended"


async def tell_end(teller: Any, job: Job) -> None:
    await events.append_async(teller, job, "succeeded", {})


async def watch(job: Job, after: feeds.Id = FROM_THE_START) -> list[feeds.Told]:
    """Everything up to the last event."""
    async with feeds.watching(job) as feed, contextlib.aclosing(feed.follow(after, 0.05)) as batches:
        return [told async for batch in batches for told in batch]


async def in_time(work: Any) -> Any:
    return await asyncio.wait_for(work, PATIENCE_S)


async def test_a_thousand_watchers_cost_one_reader(teller: Any, job: Job, valkey: redis.Redis) -> None:
    before = len(valkey.client_list())  # type: ignore[arg-type]
    watching = [asyncio.create_task(watch(job)) for _ in range(1000)]
    await tell(teller, job, *map(str, range(50)))
    await asyncio.sleep(0)
    assert len(valkey.client_list()) - before <= feeds.CONNECTIONS + 1  # type: ignore[arg-type]
    reads = read_calls(valkey)
    await tell(teller, job, *map(str, range(50)))
    await tell_end(teller, job)
    told = await in_time(asyncio.gather(*watching))
    assert read_calls(valkey) - reads < 200  # of a thousand, to each of whom fifty events were told
    assert {len(one) for one in told} == {102}
    assert all(one == told[0] for one in told)
    eventually(lambda: len(valkey.client_list()) <= before + 1)  # type: ignore[arg-type]


def read_calls(valkey: redis.Redis) -> int:
    stats: Any = valkey.info("commandstats")
    return int(stats.get("cmdstat_xrange", {"calls": 0})["calls"])


async def test_whoever_comes_back_misses_nothing_and_gets_nothing_twice(teller: Any, job: Job) -> None:
    chance = random.Random(7)

    async def come_and_go() -> list[feeds.Told]:
        seen: list[feeds.Told] = []
        while not seen or not seen[-1].is_last:
            after = seen[-1].id if seen and seen[-1].id else FROM_THE_START
            leaves_after = chance.randint(1, 40)
            async with feeds.watching(job) as feed, contextlib.aclosing(feed.follow(after, 0.05)) as batches:
                async for batch in batches:
                    seen += batch[:leaves_after]  # what was sent before the line broke
                    leaves_after -= len(batch)
                    if leaves_after <= 0 and batch:
                        break
        return seen

    going = [asyncio.create_task(come_and_go()) for _ in range(30)]
    for number in range(300):
        await tell(teller, job, str(number))
    await tell_end(teller, job)
    whole = await in_time(watch(job))
    assert len(whole) == 302
    for seen in await in_time(asyncio.gather(*going)):
        assert seen == whole


async def test_who_is_far_behind_is_told_from_the_stream(
    teller: Any, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "KEPT", 5)
    monkeypatch.setattr(feeds, "PER_READ", 3)
    async with feeds.watching(job) as feed:
        slow = feed.follow(FROM_THE_START, 0.05)
        first = await in_time(anext(slow))
        for number in range(60):
            await tell(teller, job, str(number))
            await asyncio.sleep(0)
        await tell_end(teller, job)
        whole = await in_time(watch(job))  # by the same feed, which has kept the last five by now
        seen = [*first, *[told async for batch in slow for told in batch]]
    assert seen == whole
    assert len(seen) == 62


async def end(job: Job, state: str) -> None:
    """On the row, and nowhere else."""
    await in_database(partial(Job.objects.filter(pk=job.pk).update, state=state, finished_at=job.created_at))


async def test_the_end_is_told_though_the_stream_has_lost_it(teller: Any, job: Job, valkey: redis.Redis) -> None:
    watching = asyncio.create_task(watch(job))
    await tell(teller, job, "a")
    await end(job, "failed")
    told = await in_time(watching)
    assert [one.type for one in told] == ["queued", "delta", "failed"]


async def test_a_job_that_is_deleted_ends_it(teller: Any, job: Job) -> None:
    async with feeds.watching(job) as feed:
        watching = feed.follow(FROM_THE_START, 0.05)
        await in_database(Job.objects.filter(pk=job.pk).delete)
        assert [told.type async for batch in watching for told in batch] == ["queued"]
        assert feed.gone


async def test_valkey_is_out_of_reach(job: Job, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    await end(job, "succeeded")
    settings.REDIS_URL = "unix:///nowhere/valkey.sock"
    monkeypatch.setattr(events, "append", lambda *_arguments: None)
    (told,) = await in_time(watch(job))
    assert (told.id, told.type) == (None, "succeeded")
    assert not told.as_sse().startswith(b"id:")


def test_a_key_that_is_revoked_watches_no_longer(
    program: httpx.Client, acme: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs import watching

    monkeypatch.setattr(watching, "RECHECK_S", 0.05)
    url = make(program)["stream_url"]
    with program.stream("GET", url) as stream:
        text = stream.iter_text()
        assert "queued" in next(text)
        persona_services.revoke_api_key(key=ApiKey.objects.get(tenant=acme))
        rest = parse("".join(text))
    assert [kind for _, kind, _ in rest] == ["error"] and rest[0][2]["error"]["code"] == "invalid_api_key"


def test_a_person_who_is_no_member_any_more_watches_no_longer(
    program: httpx.Client, gateway: Gateway, acme: Tenant, alice_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs import watching

    monkeypatch.setattr(watching, "RECHECK_S", 0.05)
    url = make(program)["stream_url"]
    cookie = f"sessionid={alice_client.cookies['sessionid'].value}"
    with gateway.http(None).stream("GET", url, headers={"cookie": cookie}) as stream:
        text = stream.iter_text()
        assert "queued" in next(text)
        Membership.objects.filter(user__username="alice").delete()
        rest = parse("".join(text))
    assert [kind for _, kind, _ in rest] == ["error"]
