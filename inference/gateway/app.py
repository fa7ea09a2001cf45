"""The gateway as an ASGI application: routes, and one request from its first byte to its log line."""

from __future__ import annotations

import json
import secrets
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from inference.gateway.authenticate import ADMITTED_KEY, authenticate
from inference.gateway.call import Call, Record
from inference.gateway.compose import (
    Kind,
    Part,
    answers_per_prompt,
    compose_parts,
    count_prompts,
    wants_stream,
    wants_usage,
    whole_of,
)
from inference.gateway.directory import Key
from inference.gateway.errors import GatewayError, InsufficientScope, UnknownModel
from inference.gateway.exchange import ClientGone, Exchange, Receive, Scope, Send
from inference.gateway.fleet import Upstream
from inference.gateway.merge import Merger, merge_headers
from inference.gateway.relay import Rewriter, relay_answer, relay_stream
from inference.gateway.resolve import asked_model, base_models_for, resolve_model, resolve_skills
from inference.gateway.routes import Route, find_route, register
from inference.gateway.runtime import Runtime, close_runtime, current_runtime
from inference.gateway.skills import asked_skills
from inference.gateway.sse import ResponseRewriter, StreamRewriter
from inference.gateway.transcript import Transcript

log = structlog.get_logger("gateway")


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "http":
        await _serve(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    """Take the first picture before the first request, and let go of everything at the end."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await current_runtime()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await close_runtime()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    record = Record(f"req_{secrets.token_hex(12)}")
    exchange = Exchange(scope, receive, send, record.request_id)
    try:
        route, path_params = find_route(scope["method"], scope["path"])
        record.route = route.pattern
        runtime = await current_runtime()
        key = await _admit(scope, runtime, route, path_params)
        record.tenant, record.key = key.tenant, key.prefix
        runtime.metering.book.note_use(key.prefix)
        if route.scope not in key.scopes:
            raise InsufficientScope(route.scope)
        await route.handler(Call(exchange, key, record, runtime, path_params))
        record.outcome = record.failure or "completed"
    except GatewayError as error:
        record.outcome = error.code or "refused"
        await exchange.refuse(error)
    except ClientGone:
        record.outcome = "client_gone"
    except Exception as error:
        record.outcome = "internal_error"
        # Where and what, but not its words: they may quote the request.
        where = "".join(traceback.format_tb(error.__traceback__))
        log.error("the gateway failed", request_id=record.request_id, error=type(error).__name__, where=where)
        if exchange.status is not None:
            # The server cuts the connection, which is all that is left to say, and logs what it is told.
            raise RuntimeError("the gateway failed in the middle of an answer") from None
        await exchange.refuse(GatewayError("The gateway failed to answer this request."))
    finally:
        record.write(exchange)


async def _admit(scope: Scope, runtime: Runtime, route: Route, path_params: Mapping[str, str]) -> Key:
    """Whose request it is. Raises InvalidKey, or what the route's own `admit` raises."""
    key: Key | None = scope.get(ADMITTED_KEY)
    if key is not None:
        return key
    if route.admit is not None:
        return await route.admit(scope, runtime, path_params)
    return await authenticate(scope["headers"], runtime.live)


async def complete_chat(call: Call) -> None:
    await _complete(call, "chat")


async def complete_text(call: Call) -> None:
    await _complete(call, "completion")


async def create_response(call: Call) -> None:
    await _complete(call, "responses")


async def embed(call: Call) -> None:
    await _complete(call, "embedding")


async def _complete(call: Call, kind: Kind) -> None:
    body = await call.exchange.read_json()
    async with call.exchange.while_client_listens():
        question = await _understand(call, body, kind)
        metered = call.runtime.metering.admit(call.key, question.persona, whole_of(question.parts), kind)
        asking = call.runtime.fleet.ask_all(
            call.exchange.scope["path"], [part.body for part in question.parts], request_id=call.record.request_id
        )
        async with metered as admission, asking as upstreams:
            call.exchange.headers.update(admission.headers())
            headers = _note_upstreams(call.record, upstreams)
            rewriter = _rewriter(question, body, call.record.request_id)
            admission.follow(rewriter)
            failure = None
            if question.stream:
                failure = await relay_stream(upstreams, call.exchange, headers, rewriter)
            else:
                await relay_answer(upstreams, call.exchange, headers, rewriter)
            admission.settle(rewriter.usage, failed=failure is not None)
            call.record.usage = rewriter.usage
            call.record.failure = failure.code if failure else None


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks, and of whom. `persona` is a slug, empty for the base model."""

    kind: Kind
    model: str
    persona: str
    stream: bool
    parts: list[Part]


async def _understand(call: Call, body: dict[str, Any], kind: Kind) -> Question:
    """Raises InvalidRequest, UnknownModel, EngineUnavailable."""
    live, tenant = call.runtime.live, call.key.tenant
    model = asked_model(body)
    stream = wants_stream(body)
    target = await resolve_model(model, tenant=tenant, live=live, personas=call.key.personas)
    call.record.revision = target.revision.name if target.revision else None
    call.exchange.headers["x-steerguard-revision"] = target.name
    if (owner := live.current.tenants.get(tenant)) is not None and owner.logs_prompts:
        call.exchange.transcript = Transcript(body)
    asked = asked_skills(body, count_prompts(body, kind))
    parts = compose_parts(
        body,
        kind=kind,
        definition=target.definition,
        base_model=target.base_model,
        cache_salt=call.runtime.cache_salt(tenant),
        skills=await resolve_skills(asked, tenant=tenant, base_model=target.base_model, live=live),
    )
    return Question(kind, model, target.revision.persona if target.revision else "", stream, parts)


def _rewriter(question: Question, body: dict[str, Any], request_id: str) -> Rewriter:
    if len(question.parts) > 1:
        return Merger(
            question.model,
            question.parts,
            n=answers_per_prompt(body),
            request_id=request_id,
            send_usage=wants_usage(body),
        )
    if question.kind == "responses":
        return ResponseRewriter(question.model, instructions=body.get("instructions"))
    return StreamRewriter(question.model, send_usage=wants_usage(body))


def _note_upstreams(record: Record, upstreams: Sequence[Upstream]) -> dict[str, str]:
    """Put who answers on the record, and into the headers that say so."""
    record.engine = ", ".join(dict.fromkeys(upstream.engine.name for upstream in upstreams))
    steering = upstreams[0].steering_headers if len(upstreams) == 1 else merge_headers(upstreams)
    return {"x-steerguard-engine": record.engine, **(steering or {"x-steerguard-dose": "0"})}


async def list_models(call: Call) -> None:
    await call.exchange.answer(_dump({"object": "list", "data": models_of(call)}))


async def show_model(call: Call) -> None:
    asked = call.path_params["model"]
    target = await resolve_model(asked, tenant=call.key.tenant, live=call.runtime.live, personas=call.key.personas)
    listed = {model["id"]: model for model in models_of(call)}
    names = (asked, f"{call.key.tenant}/{target.revision.persona}" if target.revision else asked)
    for name in names:
        if name in listed:
            await call.exchange.answer(_dump({**listed[name], "id": asked}))
            return
    raise UnknownModel(asked)


def models_of(call: Call) -> list[dict[str, Any]]:
    """The published personas and the base models that the key may ask, as OpenAI lists models."""
    directory, key = call.runtime.live.current, call.key
    personas = [
        _model(persona.model_name, int(persona.created_at.timestamp()), key.tenant)
        for persona in directory.personas_of(key.tenant)
        if key.personas is None or persona.published.persona in key.personas
    ]
    return [
        *personas,
        *(_model(name, 0, "steerguard") for name in base_models_for(key.tenant, key.personas, directory)),
    ]


def _model(name: str, created: int, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


register("POST", "/v1/chat/completions", complete_chat)
register("POST", "/v1/completions", complete_text)
register("POST", "/v1/responses", create_response)
register("POST", "/v1/embeddings", embed)
register("GET", "/v1/models", list_models)
register("GET", "/v1/models/{model:path}", show_model)
