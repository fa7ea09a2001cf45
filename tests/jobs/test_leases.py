"""A job that is given back is the next worker's at once, whatever else goes on in the worker that gives it back."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from inference.gateway.cancelling import unbroken
from jobs import leases, services
from jobs.leases import Leases
from jobs.models import Job

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_renewal_that_is_under_way_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(pk=1, attempts=1)
    done: list[str] = []
    renewing, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def look(jobs: Sequence[Job]) -> dict[int, str]:
        loop.call_soon_threadsafe(renewing.set)
        assert go_on.wait(60)
        done.append("renewed")
        return {job.pk: "held" for job in jobs}

    monkeypatch.setattr(leases, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(services, "look_at_leases", look)
    monkeypatch.setattr(services, "give_back", lambda _job: done.append("given back"))
    held = Leases()
    async with held.holding(job):
        await renewing.wait()
        giving = asyncio.create_task(held.give_back(job, asyncio.create_task(asyncio.sleep(60))))
        for _ in range(5):
            await asyncio.sleep(0.01)
        go_on.set()
        await giving
    assert done[-1] == "given back" and "renewed" in done
    count = len(done)
    await held.close()
    assert len(done) == count  # and it isn't looked at again


async def test_being_told_twice_to_stop_breaks_off_no_giving_back() -> None:
    done: list[str] = []
    may_end = asyncio.Event()

    async def give_back() -> str:
        await may_end.wait()
        done.append("given back")
        return "result"

    async def serve() -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            done.append(await unbroken(give_back()))
            raise

    serving = asyncio.create_task(serve())
    for _ in range(3):
        await asyncio.sleep(0)
        serving.cancel()
    await asyncio.sleep(0)
    assert not serving.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert done == ["given back", "result"]
