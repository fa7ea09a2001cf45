"""Places at engines: so many at once, the rest in a queue that is bounded in length and time."""

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inference.gateway.errors import EngineBusy
from inference.gateway.places import Places
from tests.inference.gateway.conftest import Gateway, RegisterEngine, eventually, serving
from tests.inference.gateway.stub_engine import MODEL, StubEngine, chunk, refuses, running_stub, says, streams
from tests.waiting import PATIENCE_S

ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


def places(per_engine: int = 1, queue_length: int = 4, timeout_s: float = 5.0) -> Places:
    return Places(per_engine=per_engine, queue_length=queue_length, timeout_s=timeout_s)


class TestAPlace:
    async def test_is_taken_at_the_first_engine_that_has_one(self) -> None:
        place = places(per_engine=2)
        assert [await place.take("m", ["a", "b"]) for _ in range(4)] == ["a", "a", "b", "b"]

    async def test_goes_to_whoever_waited_longest_for_that_engine(self) -> None:
        place = places()
        await place.take("m", ["a", "b"])
        await place.take("m", ["a", "b"])
        for_a = asyncio.create_task(place.take("m", ["a"]))
        for_any = asyncio.create_task(place.take("m", ["a", "b"]))
        await asyncio.sleep(0)
        place.release("m", "b")
        assert await for_any == "b"
        assert not for_a.done()
        place.release("m", "a")
        assert await for_a == "a"
        for engine in ("a", "b"):
            place.release("m", engine)
        assert place.taken.total() == 0

    async def test_is_refused_where_the_queue_is_full(self) -> None:
        place = places(queue_length=1)
        await place.take("m", ["a"])
        waiting = asyncio.create_task(place.take("m", ["a"]))
        await asyncio.sleep(0)
        with pytest.raises(EngineBusy):
            await place.take("m", ["a"])
        assert await place.take("other model", ["c"]) == "c"
        place.release("m", "a")
        assert await waiting == "a"

    async def test_is_refused_after_a_time(self) -> None:
        place = places(timeout_s=0.01)
        await place.take("m", ["a"])
        with pytest.raises(EngineBusy):
            await place.take("m", ["a"])
        place.release("m", "a")
        assert await place.take("m", ["a"]) == "a"

    @pytest.mark.parametrize("handed_over", [False, True])
    async def test_is_not_lost_with_a_client_that_leaves_the_queue(self, handed_over: bool) -> None:
        place = places()
        await place.take("m", ["a"])
        waiting = asyncio.create_task(place.take("m", ["a"]))
        await asyncio.sleep(0)
        if handed_over:
            place.release("m", "a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not handed_over:
            place.release("m", "a")
        assert await place.take("m", ["a"]) == "a"
        assert place.taken == {"a": 1}


class TestAFullEngine:
    @pytest.fixture
    def narrow(self, settings: Any) -> None:
        """One request at an engine, and one that waits."""
        settings.MAX_IN_FLIGHT_PER_ENGINE, settings.QUEUE_LENGTH, settings.QUEUE_TIMEOUT_S = 1, 1, 2 * PATIENCE_S

    def test_gets_so_many_at_once_and_the_rest_wait_or_are_refused(
        self, narrow: None, stub: StubEngine, acme_key: str
    ) -> None:
        release = threading.Event()
        most = 0
        usual, running = stub.does, 0

        async def slowly(engine: StubEngine, request: Any, body: Any) -> Any:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.to_thread(release.wait, 2 * PATIENCE_S)
            running -= 1
            return await usual(engine, request, body)

        stub.does = slowly
        with serving() as gateway, ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(lambda: gateway.http(acme_key).post("/v1/chat/completions", json=ASK)) for _ in range(3)
            ]
            eventually(lambda: any(answer.done() for answer in asked))
            release.set()
            answers = [answer.result() for answer in asked]
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
        (refused,) = (answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "engine_busy"
        assert int(refused.headers["retry-after"]) > 0
        assert most == 1

    def test_leaves_the_others_to_be_asked(
        self, narrow: None, stub: StubEngine, register: RegisterEngine, acme_key: str
    ) -> None:
        stub.does = streams(chunk("Hel"), then="hangs")
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(running_stub())
            register(other.url, name="other", status="starting")  # asked after one that is ready
            gateway = stack.enter_context(serving())
            asking = gateway.http(acme_key).stream("POST", "/v1/chat/completions", json={**ASK, "stream": True})
            held = stack.enter_context(asking).iter_lines()  # dropping it would hang up
            next(held)
            for _ in range(3):
                answer = gateway.http(acme_key).post("/v1/chat/completions", json=ASK)
                assert answer.headers["x-steerguard-engine"] == "other"


class TestAnEngineThatSaysItIsFull:
    @pytest.mark.parametrize(("status", "code"), [(429, "engine_busy"), (503, "engine_unavailable")])
    def test_is_passed_on_with_its_time(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, status: int, code: str
    ) -> None:
        stub.does = says({"error": {"message": "Full."}}, status, {"retry-after": "7"})
        answer = gateway.http(acme_key).post("/v1/chat/completions", json=ASK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["x-steerguard-engine"] == "stub"

    @pytest.mark.parametrize("status", [429, 503])
    def test_is_stepped_over(
        self, gateway: Gateway, stub: StubEngine, register: RegisterEngine, acme_key: str, status: int
    ) -> None:
        stub.does = refuses(status, "Full.")
        with running_stub() as other:
            register(other.url, name="other")
            eventually(lambda: gateway.http(acme_key).post("/v1/chat/completions", json=ASK).status_code == 200)
            for _ in range(3):
                assert gateway.http(acme_key).post("/v1/chat/completions", json=ASK).status_code == 200
