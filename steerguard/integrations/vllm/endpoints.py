"""The steering routes of the API server: what vectors an engine holds, and putting them there.

They live under `/v1` because vLLM's `--api-key` guards that. Registering is atomic over the engine's
processes: workers first, then the core's register, and last the front door, which is what lets requests in.
"""

import asyncio
import json
import logging
from argparse import Namespace
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import State
from starlette.requests import ClientDisconnect

from steerguard.blend import BlendError
from steerguard.integrations.vllm.admission import Admission, Receipt, collect_receipt
from steerguard.integrations.vllm.metrics import SteeringMetrics
from steerguard.integrations.vllm.norms import merge, probe_parameters, probe_prompts
from steerguard.integrations.vllm.patches import current_admission, is_installed
from steerguard.vectors import MAX_VECTOR_BYTES, SteeringVector, VectorError, read_vector

logger = logging.getLogger("vllm.steerguard")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
MAX_VECTORS = 100_000
METRICS_TIMEOUT_S = 2.0


class SteeringEndpoints:
    """vLLM's `EndpointPlugin` protocol (vllm/plugins/endpoint_plugins/interface.py)."""

    name = "steerguard"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        app.include_router(router)
        app.add_middleware(SteeringHeaders)
        app.add_middleware(FreshMetrics)

    async def init_state(self, engine_client: Any, state: State, args: Namespace) -> None:
        if not is_installed():
            raise RuntimeError("the steerguard plugin is not loaded: name it in VLLM_PLUGINS")
        if (getattr(args, "api_server_count", None) or 1) > 1:
            # Each API server would know only the vectors registered through itself.
            raise RuntimeError("SteerGuard needs --api-server-count 1, found more")
        parallel = engine_client.vllm_config.parallel_config
        engines = parallel.data_parallel_size_local if parallel.local_engines_only else parallel.data_parallel_size
        if engines > 1:
            # vLLM's client passes on the first engine's answer only: one may hold a vector that another let go.
            raise RuntimeError(
                f"SteerGuard needs one engine behind an API server (--data-parallel-size 1), found {engines}"
            )
        admission = current_admission()
        admission.set_norms(await measure_norms(engine_client, admission.num_layers))
        state.steerguard = EngineVectors(engine_client, admission)


def create_endpoint_plugin() -> SteeringEndpoints:
    """Entry point of `vllm.endpoint_plugins`."""
    return SteeringEndpoints()


async def measure_norms(engine_client: Any, num_layers: int) -> dict[int, float]:
    """Reference norms of the engine's model, by block; the engine must not be serving yet."""
    core = engine_client.engine_core
    prompts = probe_prompts(
        engine_client.input_processor.tokenizer, engine_client.vllm_config.model_config.get_vocab_size()
    )
    await core.call_utility_async("steerguard_start_probe")
    try:
        await asyncio.gather(*(_finish(engine_client, i, prompt) for i, prompt in enumerate(prompts)))
    finally:
        measured = await core.call_utility_async("steerguard_finish_probe")
    return merge(measured, num_layers)


async def _finish(engine_client: Any, index: int, prompt: Any) -> None:
    async for _ in engine_client.generate(prompt, probe_parameters(), f"steerguard-probe-{index}"):
        pass


class EngineVectors:
    """The engine's vectors as its API server sees them."""

    def __init__(self, engine_client: Any, admission: Admission) -> None:
        self.admission = admission
        self.model: str = engine_client.vllm_config.model_config.served_model_name or ""
        self.dtype = str(engine_client.vllm_config.model_config.dtype).removeprefix("torch.")
        self.metrics = SteeringMetrics()
        self._core = engine_client.engine_core
        self._changing = asyncio.Lock()

    async def register(self, payload: bytes, vector: SteeringVector) -> bool:
        """Puts a checked vector on every worker; whether it is new. Idempotent."""
        async with self._changing:
            if vector.digest in self.admission.vectors:
                return False
            if len(self.admission.vectors) >= MAX_VECTORS:
                raise BlendError("vectors", f"at most {MAX_VECTORS} on one engine", "one more")
            room = self.admission.max_vector_bytes - self.admission.vector_bytes
            if vector.nbytes > room:
                raise BlendError(
                    "vectors", f"at most {max(room, 0)} more bytes (STEERGUARD_VECTORS_MIB)", f"{vector.nbytes}"
                )
            await self._core.call_utility_async("steerguard_register", payload)
            self.admission.add(vector)
            return True

    async def remove(self, digest: str) -> str:
        """Takes a vector off the engine: "removed", "in_use" or "unknown"."""
        async with self._changing:
            # Without this, those who may go on using it would be refused while the core says no.
            if digest in (await self._core.call_utility_async("steerguard_state"))["in_use"]:
                return "in_use"
            # The front door closes first, so that nothing new comes to need it meanwhile.
            vector = self.admission.discard(digest)
            outcome: str = await self._core.call_utility_async("steerguard_remove", digest)
            if outcome == "in_use" and vector is not None:
                self.admission.add(vector)
            return outcome

    async def state(self) -> dict[str, Any]:
        core = await self._core.call_utility_async("steerguard_state")
        return {
            "model": self.model,
            "hidden_size": self.admission.hidden_size,
            "num_layers": self.admission.num_layers,
            "dtype": self.dtype,
            "max_dose": self.admission.max_dose,
            "dose_ceiling": self.admission.dose_ceiling,
            "norms": {str(block): norm for block, norm in sorted(self.admission.norms.items())},
            "refused": dict(self.admission.refused),
            **core,
            "vectors": len(core["vectors"]),
            "vector_bytes": self.admission.vector_bytes,
            "in_use": len(core["in_use"]),
        }

    async def described(self, digest: str | None = None) -> list[dict[str, Any]]:
        """All vectors, or the one, as the routes show them."""
        core = await self._core.call_utility_async("steerguard_state")
        in_use = set(core["in_use"])
        vectors = self.admission.vectors
        return [
            {
                "digest": vector.digest,
                "name": vector.name,
                "layers": list(vector.layers),
                "hidden_size": vector.hidden_size,
                "base_model": vector.base_model,
                "norms": {str(block): norm for block, norm in vector.norms.items()},
                "in_use": vector.digest in in_use,
            }
            for vector in ([vectors[digest]] if digest in vectors else vectors.values() if digest is None else [])
        ]


router = APIRouter(prefix="/v1/steering", tags=["steering"])


@router.get("")
async def show_state(request: Request) -> JSONResponse:
    return JSONResponse(await _engine(request).state())


@router.get("/vectors")
async def list_vectors(request: Request) -> JSONResponse:
    return JSONResponse({"data": await _engine(request).described()})


@router.get("/vectors/{digest}")
async def show_vector(digest: str, request: Request) -> JSONResponse:
    for described in await _engine(request).described(digest):
        return JSONResponse(described)
    return _unknown(digest)


@router.put("/vectors/{digest}")
async def put_vector(digest: str, request: Request) -> JSONResponse:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_VECTOR_BYTES:
                return _error(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    "body",
                    f"at most {MAX_VECTOR_BYTES} bytes",
                    "more than that",
                )
    except ClientDisconnect:
        # Nobody is there to read it; the log has a line instead of a traceback.
        return _error(HTTPStatus.BAD_REQUEST, "body", "a whole file", "one that broke off")
    engine = _engine(request)
    try:
        vector = await asyncio.to_thread(read_vector, bytes(body))
        engine.admission.check_vector(vector)
    except (VectorError, BlendError) as error:
        return _error(HTTPStatus.BAD_REQUEST, error.field, error.expected, error.found)
    if vector.digest != digest:
        return _error(HTTPStatus.BAD_REQUEST, "digest", "the digest of the body's content", vector.digest)
    try:
        created = await engine.register(bytes(body), vector)
    except BlendError as error:
        return _error(HTTPStatus.CONFLICT, error.field, error.expected, error.found)
    return JSONResponse({"digest": digest, "created": created}, HTTPStatus.CREATED if created else HTTPStatus.OK)


@router.delete("/vectors/{digest}")
async def delete_vector(digest: str, request: Request) -> JSONResponse:
    match await _engine(request).remove(digest):
        case "unknown":
            return _unknown(digest)
        case "in_use":
            return _error(HTTPStatus.CONFLICT, "digest", "a vector that no unfinished request uses", "one in use")
    return JSONResponse({"digest": digest, "deleted": True})


class SteeringHeaders:
    """Adds to each answer which blend was applied to it and its dose (a pure ASGI middleware, streams untouched)."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with collect_receipt() as receipt:

            async def send_with_headers(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start" and receipt.admitted and message["status"] < 400:
                    message["headers"] = [*message.get("headers", ()), *_headers(receipt)]
                await send(message)

            await self._app(scope, receive, send_with_headers)


class FreshMetrics:
    """Asks the engine for its figures before `/metrics` is answered; without an answer the last ones stand."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].rstrip("/") == "/metrics":
            engine: EngineVectors = scope["app"].state.steerguard
            try:
                engine.metrics.update(await asyncio.wait_for(engine.state(), METRICS_TIMEOUT_S))
            except Exception as error:  # a dead engine's, too: vLLM's own figures are wanted then more than ever
                logger.warning("the engine tells no figures of its steering: %r", error)
        await self._app(scope, receive, send)


def _headers(receipt: Receipt) -> list[tuple[bytes, bytes]]:
    admitted = receipt.admitted[-1]
    headers = {"x-steerguard-blend": admitted.blend.digest}
    if admitted.dose is not None:
        headers["x-steerguard-dose"] = f"{admitted.dose:.4f}"
    if admitted.clamped_from is not None:
        headers["x-steerguard-dose-clamped-from"] = f"{admitted.clamped_from:.4f}"
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _engine(request: Request) -> EngineVectors:
    engine: EngineVectors = request.app.state.steerguard
    return engine


def _unknown(digest: str) -> JSONResponse:
    return _error(HTTPStatus.NOT_FOUND, "digest", "a vector registered on this engine", json.dumps(digest)[:80])


def _error(status: HTTPStatus, field: str, expected: str, found: str) -> JSONResponse:
    """OpenAI's error shape, as the rest of the server answers."""
    error = {
        "message": f"{field}: expected {expected}, found {found}",
        "type": status.phrase,
        "param": field,
        "code": int(status),
    }
    return JSONResponse({"error": error}, status)
