"""Talking to one engine's steering routes (steerguard/integrations/vllm/endpoints.py).

Trusts nothing it hears: answers are bounded in size and time, and checked, because an engine may be half
started, something else may listen on its port, or a proxy may answer for it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 15.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024  # a list of 100,000 vectors
MAX_MESSAGE_CHARS = 200


class EngineError(Exception):
    """The engine did not do what it was asked."""


class EngineUnreachable(EngineError):
    """Nobody answered."""


class EngineSlow(EngineUnreachable):
    """No answer in time: away, or busy."""

    def __init__(self) -> None:
        super().__init__(f"no answer within {REQUEST_TIMEOUT_S:.0f} s")


class EngineNotListening(EngineUnreachable):
    """The machine is there but nothing listens on the port, which is so while vLLM loads its model."""

    def __init__(self) -> None:
        super().__init__("connection refused")


class EngineRefused(EngineError):
    """The engine answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}" if message else f"HTTP {status}")
        self.status = status


class VectorBusy(EngineRefused):
    """The vector can't be removed yet: an unfinished request uses it."""


class EngineMalformed(EngineError):
    """What answers doesn't speak the plugin's protocol."""


@dataclass(frozen=True)
class EngineState:
    """What an engine says about itself. `boot_id` is new with every start, which forgets all vectors."""

    boot_id: str
    model: str
    hidden_size: int
    num_layers: int


class EngineClient:
    """One engine's steering routes. Every method raises EngineError (one of its kinds)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.rstrip("/")

    async def state(self) -> EngineState:
        answer = await self._request("GET", "/v1/steering")
        try:
            return EngineState(
                boot_id=_checked(answer, "boot_id", str),
                model=_checked(answer, "model", str),
                hidden_size=_checked(answer, "hidden_size", int),
                num_layers=_checked(answer, "num_layers", int),
            )
        except KeyError as error:
            raise EngineMalformed(f"/v1/steering answered without a usable {error}") from None

    async def vector_digests(self) -> set[str]:
        """The vectors that are there."""
        answer = await self._request("GET", "/v1/steering/vectors")
        try:
            return {_checked(vector, "digest", str) for vector in _checked(answer, "data", list)}
        except KeyError as error:
            raise EngineMalformed(f"/v1/steering/vectors answered without a usable {error}") from None

    async def put_vector(self, digest: str, data: bytes, *, name: str) -> None:
        """Place a vector, given as its canonical file. Placing it again changes nothing."""
        headers = {"X-SteerGuard-Name": name, "Content-Type": "application/octet-stream"}
        await self._request("PUT", f"/v1/steering/vectors/{digest}", data=data, headers=headers)

    async def delete_vector(self, digest: str) -> None:
        """Remove a vector; one that isn't there is fine. Raises VectorBusy while a request uses it."""
        try:
            await self._request("DELETE", f"/v1/steering/vectors/{digest}")
        except EngineRefused as error:
            if error.status == 409:
                raise VectorBusy(error.status, str(error)) from None
            if error.status != 404:
                raise

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        """The parsed answer of a request that succeeded."""
        try:
            async with self._session.request(method, self._url + path, allow_redirects=False, **options) as response:
                body = await _read_bounded(response)
                status = response.status
        except TimeoutError:
            raise EngineSlow from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, ConnectionRefusedError):
                raise EngineNotListening from None
            raise EngineUnreachable(error.os_error.strerror or "connection failed") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise EngineUnreachable(str(error)[:MAX_MESSAGE_CHARS] or type(error).__name__) from None
        if not 200 <= status < 300:
            raise EngineRefused(status, _error_message(body))
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise EngineMalformed(f"{path} answered with something that is not JSON") from None


@asynccontextmanager
async def connect(url: str, api_key: str) -> AsyncIterator[EngineClient]:
    """A client of one engine, whose connections close at the end of the block."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        yield EngineClient(session, url)


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise EngineMalformed(f"answered with more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _checked(answer: Any, name: str, kind: type) -> Any:
    """`answer[name]`, which has to be a non-empty `kind`. Raises KeyError."""
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool) or (kind is not list and not value):
        raise KeyError(name)
    return value


def _error_message(body: bytes) -> str:
    """What an OpenAI-shaped error says, or nothing."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""
    return str(message)[:MAX_MESSAGE_CHARS]
