"""An engine that does exactly what a test says: for failures and byte streams that a real one can't be made to show.

It speaks what vLLM 0.32 was seen to send, byte for byte. What a real engine can show is tested with a real one.
"""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.waiting import PATIENCE_S

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
        try:
            await response.prepare(request)
            for part in parts:
                await response.write(part)
                stub.sent_bytes += len(part)
                await asyncio.sleep(0)
            if then == "hangs":
                await asyncio.Event().wait()
        except (asyncio.CancelledError, ConnectionResetError):
            stub.note_abort()
            raise
        if then == "cut" and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def says(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Script:
    async def respond(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = {**(headers or {}), **(steered(body) if status == 200 else {})}
        return web.json_response(answer, status=status, headers=told)

    return respond


def text_chunk(index: int, text: str, finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    written = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": [choice], **more}
    return f"data: {json.dumps(written)}\n\n".encode()


async def completes(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers each prompt with itself and the number of the answer, numbered as vLLM does."""
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    n = body.get("n", 1)
    texts = [f"{prompt}.{answer}" for prompt in prompts for answer in range(n)]
    usage = {"prompt_tokens": 10 * len(prompts), "completion_tokens": len(texts), "total_tokens": 0}
    if body.get("stream"):
        parts = [text_chunk(index, text, "stop") for index, text in enumerate(texts)]
        last = {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": MODEL,
            "choices": [],
            "usage": usage,
        }
        return await streams(*parts, f"data: {json.dumps(last)}\n\n".encode(), DONE)(stub, request, body)
    choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)]
    answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL, "choices": choices}
    return await says({**answer, "usage": usage})(stub, request, body)


async def responds(stub: "StubEngine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """An answer of the Responses API, in which vLLM echoes the instructions that it was given."""
    part = {"type": "output_text", "text": "Hello!", "annotations": []}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    response: dict[str, Any] = {
        "id": "resp_1",
        "created_at": 1,
        "instructions": body.get("instructions"),
        "model": MODEL,
        "object": "response",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "in_progress",
        "usage": None,
    }
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    whole = {**response, "status": "completed", "output": [message], "usage": usage}
    if not body.get("stream"):
        return await says(whole)(stub, request, body)
    delta = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Hello!", "logprobs": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": response}),
        ("response.output_text.delta", delta),
        ("response.completed", {"response": whole}),
    ]
    parts = [
        f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **data})}\n\n".encode()
        for number, (kind, data) in enumerate(events)
    ]
    return await streams(*parts)(stub, request, body)


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
            stub.note_abort()
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
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.sent_bytes = 0
        self.arrived = threading.Event()
        self.aborted = threading.Event()
        self.aborted_at_s = 0.0
        self.aborts = 0

    def note_abort(self) -> None:
        self.aborted_at_s = time.monotonic()
        self.aborts += 1
        self.aborted.set()

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
        self.paths.append(request.path)
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
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
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
    assert started.wait(PATIENCE_S)
    try:
        yield stub
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        loop.close()
