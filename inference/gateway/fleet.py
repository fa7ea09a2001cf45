"""Which engine gets a request, and the connection to it.

Any engine that serves the base model will do, because every one holds every vector; the one that is doing best and
least goes first. Asking is repeated elsewhere as long as no byte of an answer has come: a generation has no side
effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import structlog

from inference.gateway.compose import is_steered
from inference.gateway.directory import Engine
from inference.gateway.errors import EngineFailed, EngineRefused, EngineUnavailable, GatewayError
from inference.gateway.live import LiveDirectory
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

STEERING_HEADERS = ("x-steerguard-blend", "x-steerguard-dose", "x-steerguard-dose-clamped-from")
STEERING_PARAM = "vllm_xargs.steerguard"


@dataclass(frozen=True, slots=True)
class Upstream:
    """An engine that has begun to answer with a 200."""

    engine: Engine
    response: aiohttp.ClientResponse

    @property
    def steering_headers(self) -> dict[str, str]:
        """What the plugin says it applied: which blend, its dose, and what dose was scaled down to that."""
        return {name: value for name in STEERING_HEADERS if (value := self.response.headers.get(name))}


class Fleet:
    """This event loop's connections to the engines."""

    def __init__(self, live: LiveDirectory) -> None:
        self._live = live
        self._in_flight: Counter[str] = Counter()
        self._shunned_until_s: dict[str, float] = {}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S),
            # An engine is on our own network: no proxy from the environment, no cookies, no redirects.
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )

    async def close(self) -> None:
        await self._session.close()

    @contextlib.asynccontextmanager
    async def ask(self, path: str, body: Mapping[str, Any], *, request_id: str) -> AsyncIterator[Upstream]:
        """The first engine's answer to `body`, open for reading; leaving the block early aborts the generation.

        Raises EngineRefused when the request is at fault, EngineUnavailable or EngineFailed when no engine answers.
        """
        data = json.dumps(body, separators=(",", ":")).encode()
        failure: GatewayError = EngineUnavailable(f"No engine serves {body['model']!r} at the moment.")
        if not (engines := self._in_order(body["model"])):
            await self._live.refreshed({"engine"})
            engines = self._in_order(body["model"])
        for engine in engines:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    upstream = await stack.enter_async_context(self._open(engine, path, data, request_id))
                    if is_steered(body) and not upstream.steering_headers:
                        # No plugin, or a path on which it wasn't asked: never pass off an unsteered answer.
                        raise EngineFailed("The engine did not say that it steered this answer.")
                except (EngineUnavailable, EngineFailed) as error:
                    log.warning("engine did not answer", engine=engine.name, error=error.message)
                    failure = error
                    continue
                except EngineRefused as error:
                    error.param = error.param or _grammar_field(body, error.message)
                    raise
                yield upstream
                return
        raise failure

    def _in_order(self, base_model: str) -> list[Engine]:
        now_s = asyncio.get_running_loop().time()

        def preference(engine: Engine) -> tuple[bool, int, int]:
            shunned = now_s < self._shunned_until_s.get(engine.name, 0.0)
            return shunned, _RANK[engine.status], self._in_flight[engine.name]

        serving = (
            engine
            for engine in self._live.current.engines
            if engine.base_model == base_model and engine.status in _RANK
        )
        return sorted(serving, key=preference)

    @contextlib.asynccontextmanager
    async def _open(self, engine: Engine, path: str, data: bytes, request_id: str) -> AsyncIterator[Upstream]:
        headers = {"content-type": "application/json", "x-request-id": request_id}
        if engine.api_key:
            headers["authorization"] = f"Bearer {engine.api_key}"
        self._in_flight[engine.name] += 1
        try:
            response = await self._post(engine, path, data, headers)
            try:
                if response.status != 200:
                    raise await _refusal(engine, response)
                yield Upstream(engine, response)
            finally:
                # Closes the connection unless the answer was read to its end: that is what aborts a generation.
                response.close()
        finally:
            self._in_flight[engine.name] -= 1

    async def _post(self, engine: Engine, path: str, data: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        for attempt in (1, 2):
            try:
                return await self._session.post(engine.url + path, data=data, headers=headers, allow_redirects=False)
            except aiohttp.ClientConnectorError:
                break
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # A kept connection that the engine closed just then says nothing about the engine; a new one does.
                if attempt == 2:
                    break
            except (aiohttp.ClientError, TimeoutError):
                break
        self._shunned_until_s[engine.name] = asyncio.get_running_loop().time() + SHUN_S
        raise EngineUnavailable("The engine can't be reached at the moment; it may be starting.")


async def _refusal(engine: Engine, response: aiohttp.ClientResponse) -> GatewayError:
    """What an answer other than 200 means to the client."""
    answer = await _read_error(response)
    message = engine_message(answer)
    error = answer.get("error")
    param = error.get("param") if isinstance(error, dict) else None
    param = param.removeprefix("body.") if isinstance(param, str) else None
    status = response.status
    if param is not None and param.startswith(STEERING_PARAM) and param.endswith(".vector"):
        # The plugin doesn't hold the vector (yet): a new persona's is on its way, another engine may have it.
        return EngineUnavailable("The engine is still receiving this persona's vectors.")
    if status in (401, 403):
        log.error("engine refuses its key", engine=engine.name, status=status)
        return EngineFailed("The engine does not accept the gateway's key.")
    if status in (429, 503):
        return EngineUnavailable(message or "The engine takes no requests at the moment.")
    if status == 404 or not 400 <= status < 500:
        log.error("engine failed", engine=engine.name, status=status, message=message)
        return EngineFailed("The engine failed to answer this request.")
    return EngineRefused(status, message or "The engine refused this request.", param)


def _grammar_field(body: Mapping[str, Any], message: str) -> str | None:
    """The field that asked for constrained output, where vLLM refuses to make a grammar of it and names no field."""
    if not any(word in message.lower() for word in ("grammar", "json schema", "structural tag")):
        return None
    return next((name for name in ("response_format", "structured_outputs") if body.get(name) is not None), None)


async def _read_error(response: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        body = await response.content.readexactly(MAX_ERROR_BYTES)
    except asyncio.IncompleteReadError as whole:
        body = whole.partial
    except (aiohttp.ClientError, TimeoutError):
        return {}
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
