"""Places that tenants take turns at."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from jobs.slots import FairSlots, Turn


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Queue:
    """Takers in the order in which they got a place."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.got: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def take(self, tenant: str, *, ahead: bool = False, name: str = "") -> asyncio.Task[None]:
        async def take() -> None:
            await self.slots.take(tenant, ahead=ahead)
            self.got.append(name or tenant)

        self.tasks.append(task := asyncio.create_task(take()))
        return task


async def test_tenants_take_turns_however_many_wait() -> None:
    queue = Queue(FairSlots(1, 1))
    for tenant in "aaaabbc":
        queue.take(tenant)
    await settle()
    for _ in range(6):
        queue.slots.release(queue.got[-1])
        await settle()
    assert "".join(queue.got) == "abcabaa"


async def test_the_tenant_with_the_fewest_places_is_next() -> None:
    queue = Queue(FairSlots(4, 4))
    for tenant in "aaaaa":
        queue.take(tenant)
    await settle()
    queue.take("b")
    await settle()
    queue.slots.release("a")
    await settle()
    assert "".join(queue.got) == "aaaab"


async def test_a_tenants_own_share_is_bounded() -> None:
    queue = Queue(FairSlots(3, 2))
    for tenant in "aaab":
        queue.take(tenant)
    await settle()
    assert (queue.got, queue.slots.held["a"]) == (["a", "a", "b"], 2)


async def test_ahead_is_before_ones_own_and_not_before_others() -> None:
    queue = Queue(FairSlots(1, 1))
    queue.take("a", name="running")
    queue.take("a", name="a line")
    queue.take("b", name="another's line")
    queue.take("a", name="a job", ahead=True)
    await settle()
    for tenant in "aba":
        queue.slots.release(tenant)
        await settle()
    assert queue.got == ["running", "another's line", "a job", "a line"]


async def test_a_turn_is_laid_down_once() -> None:
    slots = FairSlots(1, 1)
    turn = Turn(slots, "a")
    await turn.take()
    await turn.take()
    assert slots.held["a"] == 1
    turn.lay_down()
    turn.lay_down()
    assert not slots.held
    await asyncio.wait_for(slots.take("b"), 5)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "release", "cancel"])), max_size=60))
def test_no_place_is_lost_or_given_twice(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        queue = Queue(FairSlots(3, 2))
        for tenant, step in steps:
            if step == "take":
                queue.take(tenant)
            elif step == "cancel" and queue.tasks:
                queue.tasks.pop(0).cancel()
            elif step == "release" and queue.slots.held[tenant]:
                queue.slots.release(tenant)
            if step != "cancel":
                await settle()
            assert sum(queue.slots.held.values()) <= 3 and max(queue.slots.held.values(), default=0) <= 2
        for task in queue.tasks:
            task.cancel()
        await settle()
        for tenant, held in list(queue.slots.held.items()):
            for _ in range(held):
                queue.slots.release(tenant)
        for tenant in "abc":
            await asyncio.wait_for(queue.slots.take(tenant), 5)

    asyncio.run(run())
