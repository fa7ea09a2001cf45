"""The gateway as an ASGI application: routes, and one request from its first byte to its log line."""

from __future__ import annotations

import json
import secrets
from typing import Any

import structlog

from inference.gateway.authenticate import authenticate
from inference.gateway.call import Call, Record
from inference.gateway.compose import Kind, compose, wants_stream, wants_usage
from inference.gateway.errors import GatewayError, InsufficientScope, UnknownModel
from inference.gateway.exchange import ClientGone, Exchange, Receive, Scope, Send
from inference.gateway.fleet import Upstream
from inference.gateway.relay import relay_answer, relay_stream
from inference.gateway.resolve import Target, asked_model, resolve_model, resolve_skill
from inference.gateway.routes import find_route, register
from inference.gateway.runtime import close_runtime, current_runtime
from inference.gateway.sse import StreamRewriter

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
        runtime = await current_runtime()
        key = await authenticate(scope["headers"], runtime.live)
        record.tenant, record.key = key.tenant, key.prefix
        if route.scope not in key.scopes:
            raise InsufficientScope(route.scope)
        await route.handler(Call(exchange, key, record, runtime, path_params))
        record.outcome = record.failure or "completed"
    except GatewayError as error:
        record.outcome = error.code or "refused"
        await exchange.refuse(error)
    except ClientGone:
        record.outcome = "client_gone"
    except Exception:
        record.outcome = "internal_error"
        log.exception("the gateway failed", request_id=record.request_id)
        if exchange.status is not None:
            raise  # the server cuts the connection, which is all that is left to say
        await exchange.refuse(GatewayError("The gateway failed to answer this request."))
    finally:
        record.write(exchange)


async def complete_chat(call: Call) -> None:
    await _complete(call, "chat")


async def complete_text(call: Call) -> None:
    await _complete(call, "completion")


async def _complete(call: Call, kind: Kind) -> None:
    body = await call.exchange.read_json()
    model = asked_model(body)
    stream, send_usage = wants_stream(body), wants_usage(body)
    async with call.exchange.while_client_listens():
        target = await resolve_model(model, tenant=call.key.tenant, live=call.runtime.live)
        call.record.revision = target.revision.name if target.revision else None
        upstream_body = compose(
            body,
            kind=kind,
            definition=target.definition,
            base_model=target.base_model,
            cache_salt=call.runtime.cache_salt(call.key.tenant),
            skill=await resolve_skill(
                body, tenant=call.key.tenant, base_model=target.base_model, live=call.runtime.live
            ),
        )
        path = call.exchange.scope["path"]
        asking = call.runtime.fleet.ask(path, upstream_body, request_id=call.record.request_id)
        async with asking as upstream:
            headers = note_upstream(call.record, target, upstream)
            if not stream:
                call.record.usage = await relay_answer(upstream.response, call.exchange, headers, model=model)
                return
            rewriter = StreamRewriter(model, send_usage=send_usage)
            failure = await relay_stream(upstream.response, call.exchange, headers, rewriter)
            call.record.usage = rewriter.usage
            call.record.failure = failure.code if failure else None


def note_upstream(record: Record, target: Target, upstream: Upstream) -> dict[str, str]:
    """Put who answers on the record, and into the headers that say so."""
    record.engine = upstream.engine.name
    headers = {"x-steerguard-engine": upstream.engine.name, **upstream.steering_headers}
    if target.revision is not None:
        headers["x-steerguard-revision"] = target.revision.name
    return headers


async def list_models(call: Call) -> None:
    await call.exchange.answer(_dump({"object": "list", "data": models_of(call)}))


async def show_model(call: Call) -> None:
    asked = call.path_params["model"]
    target = await resolve_model(asked, tenant=call.key.tenant, live=call.runtime.live)
    listed = {model["id"]: model for model in models_of(call)}
    names = (asked, f"{call.key.tenant}/{target.revision.persona}" if target.revision else asked)
    for name in names:
        if name in listed:
            await call.exchange.answer(_dump({**listed[name], "id": asked}))
            return
    raise UnknownModel(asked)


def models_of(call: Call) -> list[dict[str, Any]]:
    """The tenant's published personas and the base models, as OpenAI lists models."""
    directory = call.runtime.live.current
    personas = [
        _model(persona.model_name, int(persona.created_at.timestamp()), call.key.tenant)
        for persona in directory.personas_of(call.key.tenant)
    ]
    return [*personas, *(_model(name, 0, "steerguard") for name in directory.base_models())]


def _model(name: str, created: int, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


register("POST", "/v1/chat/completions", complete_chat)
register("POST", "/v1/completions", complete_text)
register("GET", "/v1/models", list_models)
register("GET", "/v1/models/{model:path}", show_model)
