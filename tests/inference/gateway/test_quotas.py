"""Limits through the whole gateway: what a client meets, what is charged when things go wrong, and what is counted."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx
import openai
import pytest
import redis

from inference.gateway import metering
from inference.gateway.ask import stream_answer
from inference.gateway.errors import LimitReached
from inference.gateway.limits import Limiter
from inference.gateway.metering import TEMPLATE_TOKENS, bound_of_answer, estimate_prompt
from inference.gateway.runtime import Runtime, _runtimes, close_runtime
from inference.models import UsageDay
from inference.usage import move_usage
from personas import services
from personas.models import ApiKey, Persona, Tenant
from tests.inference.gateway.conftest import Gateway, eventually, leave_unanswered, serving
from tests.inference.gateway.stub_engine import (
    MODEL,
    USAGE,
    StubEngine,
    chunk,
    dies,
    hangs,
    refuses,
    streams,
    usage_chunk,
)
from tests.waiting import PATIENCE_S, within

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
USED = USAGE["total_tokens"]
RESERVED = estimate_prompt(ASK) + 4
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _fresh(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has asked for anything yet, and it stays noon: no minute or day ends within a test, however slow it is."""
    monkeypatch.setattr(metering, "Limiter", partial(Limiter, clock=NOON.timestamp))
    monkeypatch.setattr(metering, "_today", lambda: NOON.date().isoformat())


@pytest.fixture
def counted(valkey: redis.Redis) -> Iterator[Any]:
    """`counted("tn")` is a field of what the limiter has counted for acme."""

    def field(name: str) -> int:
        return int(valkey.hget("steerguard:limits:acme", name) or 0)

    yield field


def limit(tenant: Tenant, **limits: int | None) -> None:
    """Set limits and wait until every gateway here has heard of them."""
    services.update_tenant(tenant=tenant, limits=limits)
    for opening in list(_runtimes.values()):
        eventually(partial(_knows, opening.result(), tenant.slug, limits))


def _knows(runtime: Runtime, tenant: str, limits: dict[str, int | None]) -> bool:
    known = runtime.live.current.tenants.get(tenant)
    return known is not None and limits.items() <= asdict(known.limits).items()


def post(gateway: Gateway, key: str, **body: Any) -> httpx.Response:
    return gateway.http(key).post("/v1/chat/completions", json={**ASK, **body})


def post_at_once(
    gateways: list[Gateway],
    key: str,
    times: int,
    *,
    hear: Callable[[httpx.Response], None] = lambda answer: None,
    **body: Any,
) -> list[httpx.Response]:
    """All the answers; `hear` is told of each when it is there."""

    async def post(client: httpx.AsyncClient, gateway: Gateway) -> httpx.Response:
        answer = await client.post(f"{gateway.url}/v1/chat/completions", json={**ASK, **body})
        hear(answer)
        return answer

    async def all_of_them() -> list[httpx.Response]:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(headers=headers, timeout=3 * PATIENCE_S, trust_env=False) as client:
            return await asyncio.gather(*(post(client, gateways[at % len(gateways)]) for at in range(times)))

    return asyncio.run(all_of_them())


def statuses(answers: list[httpx.Response]) -> dict[int, int]:
    found = [answer.status_code for answer in answers]
    return {status: found.count(status) for status in sorted(set(found))}


class TestFiftyCallsAtOnce:
    @pytest.mark.parametrize("stream", [True, False])
    def test_do_not_go_past_a_cap(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, counted: Any, stream: bool
    ) -> None:
        cap = 7 * RESERVED
        limit(acme, tokens_per_day=cap)
        answers = post_at_once([gateway], acme_key, 50, stream=stream)
        let_in = statuses(answers).get(200, 0)
        # Those that were settled early made room for a few more; together they never used more than the cap.
        assert let_in >= 7 and let_in + statuses(answers)[429] == 50
        assert let_in * USED <= cap
        eventually(lambda: counted("dn") == let_in * USED)

    def test_do_not_hold_more_than_their_slots_in_two_processes(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        limit(acme, concurrent_requests=5)
        release = threading.Event()
        running = most = 0

        async def waits(engine: StubEngine, request: Any, body: dict[str, Any]) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.to_thread(release.wait, 2 * PATIENCE_S)
            running -= 1
            return await usual(engine, request, body)

        usual, stub.does = stub.does, waits
        with serving() as another:
            answers: list[httpx.Response] = []
            asking = threading.Thread(
                target=lambda: post_at_once([gateway, another], acme_key, 50, hear=answers.append, stream=True)
            )
            asking.start()
            eventually(lambda: most >= 5 and len(answers) >= 45)
            release.set()
            asking.join()
        assert most == 5
        assert statuses(answers) == {200: 5, 429: 45}
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 429)

    def test_share_a_minute_between_two_processes(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        limit(acme, requests_per_minute=20)
        with serving() as another:
            assert statuses(post_at_once([gateway, another], acme_key, 50)) == {200: 20, 429: 30}


class TestARefusal:
    def test_is_what_the_openai_client_expects(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        limit(acme, requests_per_minute=1)
        assert post(gateway, acme_key).status_code == 200
        with pytest.raises(openai.RateLimitError) as refused:
            gateway.openai(acme_key).chat.completions.create(**ASK)
        assert (refused.value.type, refused.value.code) == ("requests", "rate_limit_exceeded")
        assert 60 <= int(refused.value.response.headers["retry-after"]) <= 61
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert len(stub.requests) == 1

    def test_tells_another_tenant_nothing(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, globex_key: str
    ) -> None:
        limit(acme, requests_per_minute=1)
        for _ in range(2):
            post(gateway, acme_key)
        answer = post(gateway, globex_key)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]

    @pytest.mark.parametrize("stream", [True, False])
    def test_is_foretold_by_the_headers(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, stream: bool
    ) -> None:
        limit(acme, requests_per_minute=10, tokens_per_minute=1000)
        headers = post(gateway, acme_key, stream=stream).headers
        assert headers["x-ratelimit-limit-requests"] == "10"
        assert headers["x-ratelimit-remaining-requests"] == "9"
        assert headers["x-ratelimit-remaining-tokens"] == str(1000 - RESERVED)
        assert headers["x-ratelimit-reset-tokens"] in ("1m0s", "1m1s")

    def test_of_an_engine_has_the_headers_too(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        limit(acme, requests_per_minute=10)
        stub.does = refuses(400, "no")
        assert post(gateway, acme_key).headers["x-ratelimit-limit-requests"] == "10"


class TestLimits:
    def test_change_within_a_second_in_every_process(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        with serving() as another:
            for each in (gateway, another):
                assert post(each, acme_key).status_code == 200

            def change(tokens_per_minute: int | None, expected: int) -> float:
                began_s = time.monotonic()
                services.update_tenant(tenant=acme, limits={"tokens_per_minute": tokens_per_minute})
                eventually(lambda: {post(each, acme_key).status_code for each in (gateway, another)} == {expected})
                return time.monotonic() - began_s

            within(1.0, lambda: max(change(1, 429), change(None, 200)))

    def test_of_a_key_leave_the_others_alone(self, gateway: Gateway, stub: StubEngine, acme: Tenant) -> None:
        narrow = services.issue_api_key(tenant=acme, name="narrow", limits={"requests_per_minute": 1})[1]
        wide = services.issue_api_key(tenant=acme, name="wide")[1]
        assert [post(gateway, narrow).status_code for _ in range(2)] == [200, 429]
        assert post(gateway, wide).status_code == 200

    def test_bound_an_answer_that_nothing_else_does(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        post(gateway, acme_key, max_tokens=None)
        assert "max_completion_tokens" not in stub.last
        limit(acme, tokens_per_day=10_000)
        post(gateway, acme_key, max_tokens=None)
        assert stub.last["max_completion_tokens"] == 1024

    def test_hold_on_the_dashboard_too(self, stub: StubEngine, acme: Tenant) -> None:
        limit(acme, requests_per_minute=1)

        async def ask() -> None:
            try:
                async for _ in stream_answer(tenant="acme", persona=None, messages=HELLO, max_tokens=4):
                    pass
                with pytest.raises(LimitReached):
                    await anext(stream_answer(tenant="acme", persona=None, messages=HELLO, max_tokens=4))
            finally:
                await close_runtime()

        asyncio.run(ask())

    def test_that_nobody_can_look_up_refuse_and_others_go_on(
        self, stub: StubEngine, acme: Tenant, acme_key: str, globex_key: str, settings: Any
    ) -> None:
        settings.REDIS_URL = "unix:///nonexistent/valkey.sock"
        limit(acme, requests_per_minute=10)
        with serving() as gateway:
            answer = post(gateway, acme_key)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
            assert answer.headers["retry-after"] == "2"
            assert post(gateway, globex_key).status_code == 200


class TestWhatIsCharged:
    """Of 1000 tokens a minute: what is left in the window is what was used."""

    @pytest.fixture(autouse=True)
    def _limits(self, acme: Tenant) -> None:
        limit(acme, tokens_per_minute=1000, requests_per_minute=10)

    @pytest.mark.parametrize("stream", [True, False])
    def test_is_what_the_engine_counted(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any, stream: bool
    ) -> None:
        post(gateway, acme_key, stream=stream)
        eventually(lambda: (counted("tn"), counted("rn")) == (USED, 1))

    @pytest.mark.parametrize("stream", [True, False])
    def test_is_nothing_where_the_engine_failed_before_the_answer(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any, stream: bool
    ) -> None:
        stub.does = dies()
        assert post(gateway, acme_key, stream=stream).status_code == 503
        eventually(lambda: counted("tl") > 0 and (counted("tn"), counted("rn")) == (0, 0))

    def test_is_the_request_alone_where_the_engine_refused_it(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any
    ) -> None:
        stub.does = refuses(400, "temperature must be non-negative")
        assert post(gateway, acme_key).status_code == 400
        eventually(lambda: counted("tl") > 0 and (counted("tn"), counted("rn")) == (0, 1))

    def test_is_what_was_streamed_where_the_engine_broke_off(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any
    ) -> None:
        stub.does = streams(*[chunk("Hel")] * 4, then="cut")
        assert "error" in post(gateway, acme_key, stream=True).text
        eventually(lambda: (counted("tn"), counted("rn")) == (estimate_prompt(ASK) + 3, 1))

    def test_is_what_was_streamed_where_the_client_left(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any
    ) -> None:
        stub.does = streams(*[chunk("Hel")] * 3, then="hangs")
        with gateway.http(acme_key).stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
            lines = (line for line in answer.iter_lines() if line)
            for _ in range(3):
                next(lines)
        assert stub.aborted.wait(PATIENCE_S)
        eventually(lambda: (counted("tn"), counted("rn")) == (estimate_prompt(ASK) + 2, 1))

    def test_is_the_prompt_where_the_client_left_before_the_answer(
        self, gateway: Gateway, stub: StubEngine, acme_key: str, counted: Any
    ) -> None:
        stub.does = hangs()
        leave_unanswered(gateway, acme_key, stub, ASK)
        assert stub.aborted.wait(PATIENCE_S)
        eventually(lambda: (counted("tn"), counted("rn")) == (estimate_prompt(ASK), 1))


class TestUsage:
    def test_arrives_in_the_database_by_persona_key_and_day(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str, support: Persona
    ) -> None:
        key = ApiKey.objects.get()
        for persona in ("support", "support@1", MODEL):
            post(gateway, acme_key, model=persona)
        post(gateway, acme_key, model="support", stream=True)
        stub.does = dies()
        post(gateway, acme_key, model="support")

        def has_arrived() -> bool:
            move_usage()
            rows = {row.persona: row for row in UsageDay.objects.filter(tenant=acme, key=key.prefix)}
            return len(rows) == 2 and (
                (rows["support"].requests, rows["support"].failures, rows[""].requests) == (4, 1, 1)
            )

        eventually(has_arrived)
        row = UsageDay.objects.get(persona="support")
        assert (row.prompt_tokens, row.completion_tokens) == (
            3 * USAGE["prompt_tokens"],
            3 * USAGE["completion_tokens"],
        )

        def was_used() -> bool:
            move_usage()
            key.refresh_from_db()
            return key.last_used_at is not None

        eventually(was_used)

    def test_tells_cached_and_steered_tokens(
        self, gateway: Gateway, stub: StubEngine, acme: Tenant, acme_key: str
    ) -> None:
        usage = {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 16},
            "steering": {"blend": "b", "prompt_tokens": 31, "response_tokens": 4},
        }
        told = usage_chunk().replace(json.dumps(USAGE, separators=(",", ":")).encode(), json.dumps(usage).encode())
        stub.does = streams(chunk("Hel"), told, b"data: [DONE]\n\n")
        post(gateway, acme_key, stream=True)
        eventually(lambda: move_usage() > 0 and UsageDay.objects.exists())
        row = UsageDay.objects.get()
        assert (row.cached_prompt_tokens, row.steered_tokens) == (16, 35)

    def test_of_the_dashboard_has_no_key(self, stub: StubEngine, acme: Tenant, support: Persona) -> None:
        async def ask() -> None:
            async for _ in stream_answer(tenant="acme", persona="support", messages=HELLO):
                pass
            await close_runtime()  # which hands on what has been counted

        asyncio.run(ask())
        move_usage()
        row = UsageDay.objects.get()
        assert (row.persona, row.key, row.requests, row.completion_tokens) == ("support", "", 1, 4)


class TestAnEstimate:
    @pytest.mark.parametrize(
        ("body", "least"),
        [
            ({"messages": [{"role": "user", "content": "a" * 300}]}, 100),
            ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 300}]}]}, 100),
            ({"prompt": "漢" * 100}, 200),
            ({"prompt": list(range(500))}, 500),
            ({"prompt": ["a" * 300, "b" * 300]}, 200),
            ({"input": "a" * 300, "tools": [{"type": "function"}]}, 350),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 2000),
        ],
    )
    def test_of_a_prompt_is_generous(self, body: dict[str, Any], least: int) -> None:
        assert least + TEMPLATE_TOKENS <= estimate_prompt(body) <= 2 * least + 3 * TEMPLATE_TOKENS

    @pytest.mark.parametrize(
        ("body", "kind", "tokens"),
        [
            ({"max_tokens": 7}, "chat", 7),
            ({"max_tokens": 7, "max_completion_tokens": 9, "n": 3}, "chat", 27),
            ({"prompt": "x"}, "completion", 16),
            ({"prompt": ["x", "y"], "n": 2, "max_tokens": 5}, "completion", 20),
            ({"prompt": [1, 2, 3], "max_tokens": 5}, "completion", 5),
            ({"max_output_tokens": 5}, "responses", 5),
            ({"input": "x"}, "embedding", 0),
            ({"max_tokens": "many", "n": None}, "chat", 1024),
        ],
    )
    def test_of_an_answer_is_its_bound(self, body: dict[str, Any], kind: str, tokens: int) -> None:
        assert bound_of_answer(body, kind) == tokens
