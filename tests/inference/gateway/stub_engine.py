"""An engine that does exactly what a test says: for failures and byte streams that a real one can't be made to show.

It speaks what vLLM 0.32 was seen to send, byte for byte. What a real engine can show is tested with a real one.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

MODEL = "SmolLM2-135M-Instruct"
KEY = "engine-key"

HEAD = f'{{"id":"chatcmpl-req_1","object":"chat.completion.chunk","created":1796072752,"model":"{MODEL}"'
USAGE = {"prompt_tokens": 32, "total_tokens": 36, "completion_tokens": 4}

Script = Callable[["StubEngine", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    """One streamed delta, as vLLM writes it."""
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish_reason}
    written = json.dumps(choice, separators=(",", ":"), ensure_ascii=False)
    return f'data: {HEAD},"choices":[{written}]}}\n\n'.encode()


def usage_chunk() -> bytes:
    return f'data: {HEAD},"choices":[],"usage":{json.dumps(USAGE, separators=(",", ":"))}}}\n\n'.encode()


DONE = b"data: [DONE]\n\n"


def steered(body: dict[str, Any]) -> dict[str, str]:
    """The header by which the plugin says that it steered."""
    return {"x-steerguard-blend": "b" * 64} if "steerguard" in body.get("vllm_xargs", {}) else {}


def streams(*parts: bytes, then: str = "ends") -> Script:
    """Sends `parts` one write each; `then` it "ends", is "cut" off, or "hangs" until it is left alone."""

    async def answer(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", **steered(body)}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            for part in parts:
                await response.write(part)
                stub.sent_bytes += len(part)
                await asyncio.sleep(0)
            if then == "hangs":
                await asyncio.Event().wait()
        except (asyncio.CancelledError, ConnectionResetError):
            stub.aborted.set()
            raise
        if then == "cut" and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def says(answer: dict[str, Any], status: int = 200) -> Script:
    async def respond(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(answer, status=status, headers=steered(body) if status == 200 else None)

    return respond


def refuses(status: int, message: str, param: str | None = None) -> Script:
    """vLLM's error shape."""
    return says({"error": {"message": message, "type": "BadRequestError", "param": param, "code": status}}, status)


def dies() -> Script:
    """Takes the request and closes the connection without an answer."""

    async def answer(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    return answer


def hangs() -> Script:
    """Takes the request and never answers."""

    async def answer(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stub.aborted.set()
            raise
        return web.Response()

    return answer


async def hello(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The ordinary answer, streamed or not."""
    if body.get("stream"):
        parts = (chunk("Hel"), chunk("lo!", "stop"), usage_chunk(), DONE)
        return await streams(*parts)(stub, request, body)
    message = {"role": "assistant", "content": "Hello!"}
    return web.json_response(
        {
            "id": "chatcmpl-req_1",
            "object": "chat.completion",
            "created": 1796072752,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": USAGE,
        },
        headers=steered(body),
    )


class StubEngine:
    """`requests` are the bodies that came, `does` what it does with the next ones."""

    def __init__(self) -> None:
        self.url = ""
        self.does: Script = hello
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.sent_bytes = 0
        self.arrived = threading.Event()
        self.aborted = threading.Event()

    @property
    def last(self) -> dict[str, Any]:
        return self.requests[-1]

    @property
    def steering(self) -> dict[str, Any]:
        """The steering that the last request asked for."""
        spec: dict[str, Any] = json.loads(self.last["vllm_xargs"]["steerguard"])
        return spec

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        body = await request.json()
        self.requests.append(body)
        self.arrived.set()
        return await self.does(self, request, body)


@contextmanager
def running_stub() -> Iterator[StubEngine]:
    """A stub on a free port, in a thread of its own."""
    stub = StubEngine()
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/{path:.*}", stub._handle)
        # A handler is cancelled when its client goes away, which is how an abort is seen.
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        stub.url = f"http://{host}:{port}"
        started.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
