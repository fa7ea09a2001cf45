"""Asking a persona from inside this process (the playground), by the same path as a request over HTTP.

    async with aclosing(stream_answer(tenant="acme", persona="support", messages=[…], strength=1.5)) as events:
        async for event in events:
            match event:
                case Started(): ...
                case Delta(): ...
                case Finished(): ...

The first event is Started, then come Deltas, the last is Finished. Whatever goes wrong raises a GatewayError, whose
`message` is fit to be shown. Closing the generator, or cancelling the task that reads it, aborts the generation in the
engine. The caller has decided that the person may act for `tenant`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.gateway.compose import compose
from inference.gateway.connections import Answer, ConnectionProblem
from inference.gateway.errors import EngineFailed
from inference.gateway.relay import BROKE_OFF
from inference.gateway.resolve import Target, default_base_model, resolve_model
from inference.gateway.runtime import Runtime, current_runtime
from inference.gateway.sse import DONE_EVENT, EventSplitter, engine_message, parse_event
from personas.definition import Definition


@dataclass(frozen=True, slots=True)
class Started:
    """An engine has taken the request. `revision` is `tenant/persona@N`, None for the unsteered model.

    `dose` is the blend's highest over blocks; None when nothing is added or the engine doesn't know its norms.
    """

    request_id: str
    revision: str | None
    base_model: str
    engine: str
    dose: float | None


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """`tokens_per_s` is the pace after the first token, None where there was no second one."""

    finish_reason: str | None
    usage: Mapping[str, int]
    ttft_ms: float | None
    tokens_per_s: float | None
    revision: str | None
    engine: str


Event = Started | Delta | Finished


@dataclass(slots=True)
class _Progress:
    """How far an answer has come, for what it is charged when it is left."""

    usage: dict[str, int] | None = None
    events: int = 0


async def stream_answer(
    *,
    tenant: str,
    persona: str | None,
    messages: Sequence[Mapping[str, Any]],
    strength: float = 1.0,
    max_tokens: int | None = None,
    seed: int | None = None,
    temperature: float | None = None,
    definition: Definition | None = None,
) -> AsyncGenerator[Event, None]:
    """Stream one answer. Raises GatewayError.

    `tenant` is a slug; `persona` is any name that the tenant's keys could use as a model (`support`, `acme/support@3`),
    None for the unsteered base model. `strength` multiplies the persona's alphas. `definition` is answered by in place
    of the published one: a draft, which is then checked and allowed by the caller (`revision` is None).
    """
    began_s = time.perf_counter()
    request_id = f"req_{secrets.token_hex(12)}"
    runtime = await current_runtime()
    target = await _target(runtime, tenant, persona)
    answering = target.definition if definition is None else definition
    parameters = {"max_tokens": max_tokens, "seed": seed, "temperature": temperature}
    # What requests can't set can't be tried either. The published persona's locks hold for a definition in its place,
    # such as the unsteered one beside it, or the two would be sampled differently.
    locked = {*target.definition.locked, *answering.locked}
    body = compose(
        {
            "messages": list(messages),
            "stream": True,
            **{name: value for name, value in parameters.items() if name not in locked},
        },
        kind="chat",
        definition=answering,
        base_model=target.base_model,
        cache_salt=runtime.cache_salt(tenant),
        strength=strength,
    )
    revision = target.revision.name if target.revision and definition is None else None
    first_s = last_s = None
    finish_reason: str | None = None
    usage: dict[str, int] = {}
    persona_slug = target.revision.persona if target.revision else ""
    metered = runtime.metering.admit(None, persona_slug, body, "chat", tenant=tenant)
    asking = runtime.fleet.ask("/v1/chat/completions", body, request_id=request_id)
    async with metered as admission, asking as upstream:
        admission.follow(progress := _Progress())
        engine = upstream.engine.name
        dose = upstream.steering_headers.get("x-steerguard-dose")
        yield Started(request_id, revision, target.base_model, engine, float(dose) if dose else None)
        async for chunk in read_chunks(upstream.answer):
            progress.events += 1
            usage = progress.usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or ():
                finish_reason = choice.get("finish_reason") or finish_reason
                if text := (choice.get("delta") or {}).get("content"):
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                    yield Delta(text)
    yield Finished(
        finish_reason=finish_reason,
        usage=usage,
        ttft_ms=round((first_s - began_s) * 1000, 1) if first_s else None,
        tokens_per_s=_pace(usage.get("completion_tokens", 0), first_s, last_s),
        revision=revision,
        engine=engine,
    )


async def read_chunks(answer: Answer) -> AsyncIterator[dict[str, Any]]:
    """The parsed chunks of a stream. Raises EngineFailed when it breaks off or reports an error."""
    splitter = EventSplitter()
    finished = False
    try:
        while data := await answer.read_any():
            for event in splitter.feed(data):
                if event == DONE_EVENT:
                    finished = True
                elif event and not event.startswith(b":"):
                    chunk = parse_event(event)
                    if "error" in chunk:
                        raise EngineFailed(engine_message(chunk) or "The engine reported an error.")
                    yield chunk
    except ConnectionProblem as error:
        raise EngineFailed(BROKE_OFF) from error
    if not finished:
        raise EngineFailed(BROKE_OFF)


async def _target(runtime: Runtime, tenant: str, persona: str | None) -> Target:
    if persona is not None:
        return await resolve_model(persona, tenant=tenant, live=runtime.live)
    return Target(None, default_base_model(runtime.live.current))


def _pace(tokens: int, first_s: float | None, last_s: float | None) -> float | None:
    if first_s is None or last_s is None or last_s <= first_s or tokens < 2:
        return None
    return round((tokens - 1) / (last_s - first_s), 1)
