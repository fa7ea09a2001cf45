"""Asking from inside the process, as the playground does: the same persona, the same limits, parsed events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from inference.gateway.ask import Delta, Event, Finished, Started, stream_answer
from inference.gateway.errors import EngineFailed, EngineUnavailable, UnknownModel
from inference.gateway.runtime import close_runtime
from personas.definition import Definition
from personas.models import Persona, Tenant
from tests.inference.gateway.stub_engine import MODEL, StubEngine, chunk, streams
from tests.waiting import PATIENCE_S

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
async def _runtime(transactional_db: None) -> AsyncIterator[None]:
    yield
    await close_runtime()


async def ask(persona: str | None = "support", **more: Any) -> list[Event]:
    answer = stream_answer(tenant="acme", persona=persona, messages=HELLO, **more)
    async with aclosing(answer) as events:
        return [event async for event in events]


async def test_an_answer_starts_comes_in_pieces_and_ends_with_its_figures(stub: StubEngine, support: Persona) -> None:
    started, *deltas, finished = await ask(max_tokens=5, seed=7)

    assert isinstance(started, Started)
    assert (started.revision, started.engine, started.base_model) == ("acme/support@1", "stub", MODEL)
    assert deltas == [Delta("Hel"), Delta("lo!")]
    assert isinstance(finished, Finished)
    assert finished.finish_reason == "stop"
    assert finished.usage["completion_tokens"] == 4
    assert finished.ttft_ms and finished.ttft_ms > 0
    assert (stub.last["max_tokens"], stub.last["seed"]) == (5, 7)
    assert stub.last["temperature"] == 0.2


async def test_the_strength_multiplies_the_blend(stub: StubEngine, support: Persona) -> None:
    await ask(strength=2.0)
    assert stub.steering["blend"][0]["alpha"] == 3.0
    await ask(strength=0.0)
    assert "vllm_xargs" not in stub.last


async def test_no_persona_is_the_unsteered_model(stub: StubEngine, support: Persona) -> None:
    started, *_ = await ask(None)
    assert isinstance(started, Started) and started.revision is None
    assert "vllm_xargs" not in stub.last
    assert stub.last["messages"] == HELLO


async def test_a_draft_can_be_tried_before_it_is_published(stub: StubEngine, support: Persona) -> None:
    started, *_ = await ask(definition=Definition(system_prompt="A draft."))
    assert isinstance(started, Started) and started.revision is None
    assert stub.last["messages"][0]["content"] == "A draft."


async def test_the_tenants_prompts_are_cached_apart_here_too(
    stub: StubEngine, support: Persona, globex: Tenant
) -> None:
    await ask(None)
    ours = stub.last["cache_salt"]
    async with aclosing(stream_answer(tenant="globex", persona=None, messages=HELLO)) as events:
        assert [event async for event in events]
    assert stub.last["cache_salt"] != ours


async def test_leaving_early_aborts_the_generation(stub: StubEngine, support: Persona) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    answer = stream_answer(tenant="acme", persona="support", messages=HELLO)
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, Delta):
                break
    assert await asyncio.to_thread(stub.aborted.wait, PATIENCE_S)


async def test_cancelling_aborts_the_generation(stub: StubEngine, support: Persona) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    asking = asyncio.create_task(ask())
    assert await asyncio.to_thread(stub.arrived.wait, PATIENCE_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(stub.aborted.wait, PATIENCE_S)


async def test_other_tenants_personas_are_unknown(stub: StubEngine, support: Persona, globex: Tenant) -> None:
    with pytest.raises(UnknownModel):
        async with aclosing(stream_answer(tenant="globex", persona="acme/support", messages=HELLO)) as events:
            await anext(events)


async def test_a_stream_that_breaks_off_raises(stub: StubEngine, support: Persona) -> None:
    stub.does = streams(chunk("Hel"), then="cut")
    with pytest.raises(EngineFailed):
        await ask()


async def test_no_engine_raises(support: Persona) -> None:
    with pytest.raises(EngineUnavailable):
        await ask()
