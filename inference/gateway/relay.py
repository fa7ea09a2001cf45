"""An engine's answer on its way to the client: whole, or as a stream of events passed on as they come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from inference.gateway.errors import EngineFailed, EngineUnavailable, GatewayError
from inference.gateway.exchange import Exchange
from inference.gateway.sse import DONE_EVENT, EVENT_END, KEEP_ALIVE, EventSplitter, StreamRewriter, rename_answer

# Far above any whole answer; what an engine sends without end must not fill our memory.
MAX_ANSWER_BYTES = 64 * 1024 * 1024

BROKE_OFF = "The engine broke off in the middle of the answer."


async def relay_answer(
    response: aiohttp.ClientResponse, exchange: Exchange, headers: Mapping[str, str], *, model: str
) -> dict[str, Any] | None:
    """Pass on an answer that is not streamed; returns its usage. Raises GatewayError, nothing having been sent."""
    body, answer = rename_answer(await read_whole(response), model)
    await exchange.answer(body, headers)
    usage = answer.get("usage")
    return usage if isinstance(usage, dict) else None


async def read_whole(response: aiohttp.ClientResponse) -> bytes:
    """Raises EngineUnavailable when the engine goes away meanwhile, EngineFailed when it finds no end."""
    body = bytearray()
    try:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise EngineFailed(f"The engine's answer is longer than {MAX_ANSWER_BYTES} bytes.")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise EngineUnavailable(BROKE_OFF) from error
    return bytes(body)


async def relay_stream(
    response: aiohttp.ClientResponse, exchange: Exchange, headers: Mapping[str, str], rewriter: StreamRewriter
) -> GatewayError | None:
    """Pass on a stream; returns what broke it, if something did.

    It always ends properly: where the engine breaks off, an error event and `[DONE]` tell the client so.
    """
    await exchange.start(200, "text/event-stream; charset=utf-8", headers)
    splitter = EventSplitter()
    failure: GatewayError | None = None
    try:
        async with exchange.kept_alive(KEEP_ALIVE):
            while chunk := await response.content.readany():
                if out := rewriter.rewrite_all(splitter.feed(chunk)):
                    await exchange.write(out)
                if rewriter.failure is not None:
                    break
        if not rewriter.finished:
            failure = rewriter.failure or EngineFailed(BROKE_OFF)
    except EngineFailed as error:
        failure = error
    except (aiohttp.ClientError, TimeoutError):
        failure = EngineFailed(BROKE_OFF)
    await exchange.finish(end_with(failure) if failure else b"")
    return failure


def end_with(failure: GatewayError) -> bytes:
    return b"data: " + failure.body() + EVENT_END + DONE_EVENT + EVENT_END
