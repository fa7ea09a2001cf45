"""Which engine gets a request, and the connection to it.

Any engine that serves the base model will do, because every one holds every vector; the one that is doing best and
least goes first. Asking is repeated elsewhere as long as no byte of an answer has come: a generation has no side
effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings

from inference.gateway.compose import is_steered
from inference.gateway.connections import Answer, BrokenOff, ConnectionProblem, Connections
from inference.gateway.directory import Engine
from inference.gateway.errors import (
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
    GatewayError,
    Unsupported,
)
from inference.gateway.live import LiveDirectory
from inference.gateway.places import Places
from inference.gateway.sse import engine_message

log = structlog.get_logger("gateway")

CONNECT_TIMEOUT_S = 3.0
# Longest silence of an engine: the queue and prefill of a whole answer that is not streamed must fit in.
SILENCE_TIMEOUT_S = 600.0
# Under the 5 s after which vLLM's server closes an idle connection, or a request would meet a closing one.
IDLE_CONNECTION_S = 4.0
MAX_ERROR_BYTES = 64 * 1024
# For how long an engine that could not be reached is asked last.
SHUN_S = 2.0

_RANK = {"ready": 0, "starting": 1, "unknown": 1, "unreachable": 2}

# Longest that a client is told to wait because an engine says so.
MAX_RETRY_AFTER_S = 60

# What an engine may have or not, by the model that it serves.
OPTIONAL_PATHS = ("/v1/responses", "/v1/embeddings")

_ENCODER = json.JSONEncoder(separators=(",", ":"))

STEERING_HEADERS = ("x-steerguard-blend", "x-steerguard-dose", "x-steerguard-dose-clamped-from")
STEERING_PARAM = "vllm_xargs.steerguard"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An engine that has begun to answer with a 200."""

    engine: Engine
    answer: Answer

    @property
    def steering_headers(self) -> dict[str, str]:
        """What the plugin says it applied: which blend, its dose, and what dose was scaled down to that."""
        return {name: value for name in STEERING_HEADERS if (value := self.answer.headers.get(name))}


class Fleet:
    """This event loop's connections to the engines."""

    def __init__(self, live: LiveDirectory) -> None:
        self._live = live
        self._places = Places(
            per_engine=settings.MAX_IN_FLIGHT_PER_ENGINE,
            queue_length=settings.QUEUE_LENGTH,
            timeout_s=settings.QUEUE_TIMEOUT_S,
        )
        self._shunned_until_s: dict[str, float] = {}
        self._connections = Connections(
            connect_timeout_s=CONNECT_TIMEOUT_S, silence_timeout_s=SILENCE_TIMEOUT_S, idle_s=IDLE_CONNECTION_S
        )

    async def close(self) -> None:
        await self._connections.close()

    @contextlib.asynccontextmanager
    async def ask(self, path: str, body: Mapping[str, Any], *, request_id: str) -> AsyncIterator[Upstream]:
        """The first engine's answer to `body`, open for reading; leaving the block early aborts the generation.

        Raises EngineRefused or Unsupported when the request is at fault, EngineBusy, EngineUnavailable or EngineFailed
        when no engine answers.
        """
        base_model = body["model"]
        data = _ENCODER.encode(body).encode()
        failure: GatewayError = EngineUnavailable(f"No engine serves {base_model!r} at the moment.")
        if not (engines := self._in_order(base_model)):
            await self._live.refreshed({"engine"})
            engines = self._in_order(base_model)
        while engines:
            name = await self._places.take(base_model, list(engines))
            engine = engines.pop(name)
            try:
                try:
                    answer = await self._begin(engine, path, data, request_id, steered=is_steered(body))
                except (EngineBusy, EngineUnavailable, EngineFailed, Unsupported) as error:
                    log.warning("engine did not answer", engine=name, error=error.code)
                    failure = error
                    failure.headers["x-steerguard-engine"] = name
                    continue
                except EngineRefused as error:
                    error.param = error.param or _grammar_field(body, error.message)
                    error.headers["x-steerguard-engine"] = name
                    raise
                try:
                    yield Upstream(engine, answer)
                finally:
                    answer.close()
                return
            finally:
                self._places.release(base_model, name)
        raise failure

    @contextlib.asynccontextmanager
    async def ask_all(
        self, path: str, bodies: Sequence[Mapping[str, Any]], *, request_id: str
    ) -> AsyncIterator[list[Upstream]]:
        """The answers to all of `bodies`, asked for together and in their order. Raises what `ask` does.

        If one can't be had the others are given up; leaving the block early aborts them all.
        """
        if len(bodies) == 1:
            async with self.ask(path, bodies[0], request_id=request_id) as upstream:
                yield [upstream]
            return
        read = asyncio.Event()

        async def hold(number: int, body: Mapping[str, Any], opened: asyncio.Future[Upstream]) -> None:
            # Engines name their own requests by this id, which has to be another for each.
            async with self.ask(path, body, request_id=f"{request_id}-{number}") as upstream:
                opened.set_result(upstream)
                await read.wait()

        try:
            async with asyncio.TaskGroup() as group:
                loop = asyncio.get_running_loop()
                opening = [loop.create_future() for _ in bodies]
                for number, body in enumerate(bodies):
                    group.create_task(hold(number, body, opening[number]), name="gateway-ask-part")
                yield [await opened for opened in opening]
                read.set()
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

    def _in_order(self, base_model: str) -> dict[str, Engine]:
        """The engines to ask by name, the one that is doing best and least first."""
        now_s = asyncio.get_running_loop().time()

        def preference(engine: Engine) -> tuple[bool, int, int]:
            shunned = now_s < self._shunned_until_s.get(engine.name, 0.0)
            return shunned, _RANK[engine.status], self._places.taken[engine.name]

        serving = [
            engine
            for engine in self._live.current.engines
            if engine.base_model == base_model and engine.status in _RANK
        ]
        if len(serving) > 1:
            serving.sort(key=preference)
        return {engine.name: engine for engine in serving}

    async def _begin(self, engine: Engine, path: str, data: bytes, request_id: str, *, steered: bool) -> Answer:
        """The engine's answer, begun with a 200 and steered as was asked. Raises what its refusal means."""
        headers = {"content-type": "application/json", "x-request-id": request_id}
        if engine.api_key:
            headers["authorization"] = f"Bearer {engine.api_key}"
        answer = await self._post(engine, path, data, headers)
        try:
            if answer.status != 200:
                raise await _refusal(engine, path, answer)
            if steered and STEERING_HEADERS[0] not in answer.headers:
                # No plugin, or a path on which it wasn't asked: never pass off an unsteered answer.
                raise EngineFailed("The engine did not say that it steered this answer.")
        except BaseException:
            answer.close()
            raise
        return answer

    async def _post(self, engine: Engine, path: str, data: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            try:
                return await self._connections.post(engine.url, path, headers, data)
            except BrokenOff:
                # A kept connection that the engine closed just then says nothing about the engine; a new one does.
                return await self._connections.post(engine.url, path, headers, data, reuse=False)
        except (ConnectionProblem, ValueError) as error:
            log.warning("engine can't be reached", engine=engine.name, error=str(error))
        self._shunned_until_s[engine.name] = asyncio.get_running_loop().time() + SHUN_S
        raise EngineUnavailable("The engine can't be reached at the moment; it may be starting.")


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _refusal(engine: Engine, path: str, answer: Answer) -> GatewayError:
    """What an answer other than 200 means to the client."""
    body = await _read_error(answer)
    message = engine_message(body)
    error = body.get("error")
    param = error.get("param") if isinstance(error, dict) else None
    param = param.removeprefix("body.") if isinstance(param, str) else None
    status = answer.status
    if param is not None and param.startswith(STEERING_PARAM) and param.endswith(".vector"):
        # The plugin doesn't hold the vector (yet): a new persona's is on its way, another engine may have it.
        return EngineUnavailable("The engine is still receiving this persona's vectors.")
    if status in (401, 403):
        log.error("engine refuses its key", engine=engine.name, status=status)
        return EngineFailed("The engine does not accept the gateway's key.")
    if status in (429, 503):
        kind = EngineBusy if status == 429 else EngineUnavailable
        return kind(message or "The engine takes no requests at the moment.", retry_after_s=_retry_after_s(answer))
    if path in OPTIONAL_PATHS and status in (404, 501):
        return Unsupported(f"The engine has no {path} for this model.", param="model")
    if status == 404 or not 400 <= status < 500:
        # Without its words, which may quote the request; its own log has them.
        log.error("engine failed", engine=engine.name, status=status)
        return EngineFailed("The engine failed to answer this request.")
    return EngineRefused(status, message or "The engine refused this request.", param)


def _retry_after_s(answer: Answer) -> int:
    asked = answer.headers.get("retry-after", "")
    return min(max(int(asked), 1), MAX_RETRY_AFTER_S) if asked.isascii() and asked.isdigit() else 2


def _grammar_field(body: Mapping[str, Any], message: str) -> str | None:
    """The field that asked for constrained output, where vLLM refuses to make a grammar of it and names no field."""
    if not any(word in message.lower() for word in ("grammar", "json schema", "structural tag")):
        return None
    return next((name for name in ("response_format", "structured_outputs") if body.get(name) is not None), None)


async def _read_error(answer: Answer) -> dict[str, Any]:
    body = b""
    try:
        while len(body) < MAX_ERROR_BYTES and (data := await answer.read_any()):
            body += data
        error = json.loads(body)
    except (ConnectionProblem, ValueError):
        return {}
    return error if isinstance(error, dict) else {}
