"""Engines' answers on their way to the client: whole, or as a stream of events passed on as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing

from inference.gateway.connections import Answer, ConnectionProblem
from inference.gateway.errors import EngineFailed, EngineUnavailable, GatewayError
from inference.gateway.exchange import Exchange
from inference.gateway.fleet import Upstream
from inference.gateway.merge import Merger, interleave
from inference.gateway.sse import KEEP_ALIVE, EventSplitter, ResponseRewriter, StreamRewriter

# Far above any whole answer; what an engine sends without end must not fill our memory.
MAX_ANSWER_BYTES = 64 * 1024 * 1024

BROKE_OFF = "The engine broke off in the middle of the answer."


Rewriter = StreamRewriter | ResponseRewriter | Merger


async def relay_answer(
    upstreams: Sequence[Upstream], exchange: Exchange, headers: Mapping[str, str], rewriter: Rewriter
) -> None:
    """Pass on an answer that is not streamed. Raises GatewayError, nothing having been sent."""
    # Read one by one, though the engines write them at the same time.
    bodies = [await read_whole(upstream.answer) for upstream in upstreams]
    whole = rewriter.merge_whole(bodies) if isinstance(rewriter, Merger) else rewriter.rewrite_whole(bodies[0])
    await exchange.answer(whole, headers)


async def read_whole(answer: Answer) -> bytes:
    """Raises EngineUnavailable when the engine goes away meanwhile, EngineFailed when it finds no end."""
    body = b""
    try:
        while data := await answer.read_any():
            body = body + data if body else data
            if len(body) > MAX_ANSWER_BYTES:
                raise EngineFailed(f"The engine's answer is longer than {MAX_ANSWER_BYTES} bytes.")
    except ConnectionProblem as error:
        raise EngineUnavailable(BROKE_OFF) from error
    return body


async def relay_stream(
    upstreams: Sequence[Upstream],
    exchange: Exchange,
    headers: Mapping[str, str],
    rewriter: Rewriter,
) -> GatewayError | None:
    """Pass on a stream; returns what broke it, if something did.

    It always ends properly: where the engine breaks off, an error event and `[DONE]` tell the client so.
    """
    await exchange.start(200, "text/event-stream; charset=utf-8", headers)
    failure: GatewayError | None = None
    try:
        async with exchange.kept_alive(KEEP_ALIVE):
            if isinstance(rewriter, Merger):
                await _pass_on_several(upstreams, exchange, rewriter)
            else:
                await _pass_on(upstreams[0].answer, exchange, rewriter)
        if not rewriter.finished:
            failure = rewriter.failure or EngineFailed(BROKE_OFF)
    except EngineFailed as error:
        failure = error
    except ConnectionProblem:
        failure = EngineFailed(BROKE_OFF)
    await exchange.finish(rewriter.ending(failure))
    return failure


async def _pass_on(answer: Answer, exchange: Exchange, rewriter: StreamRewriter | ResponseRewriter) -> None:
    splitter = EventSplitter()
    while chunk := await answer.read_any():
        if out := rewriter.rewrite_block(splitter.take(chunk)):
            await exchange.write(out)
        if rewriter.failure is not None:
            return


async def _pass_on_several(upstreams: Sequence[Upstream], exchange: Exchange, merger: Merger) -> None:
    splitters = [EventSplitter() for _ in upstreams]
    async with aclosing(interleave(upstreams)) as chunks:
        async for number, chunk in chunks:
            if out := merger.rewrite(number, splitters[number].feed(chunk)):
                await exchange.write(out)
            if merger.failure is not None:
                return
