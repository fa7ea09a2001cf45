"""The steering routes where clients and requests come and go at awkward moments.

The engine core's register is real; the request that uses a vector, and the workers, are only said to be there.
"""

from argparse import Namespace
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from prometheus_client.registry import REGISTRY
from starlette.datastructures import State

from steerguard.blend import BlendError, parse_blend
from steerguard.integrations.vllm import endpoints, patches
from steerguard.integrations.vllm.admission import Admission
from steerguard.integrations.vllm.config import PluginConfig
from steerguard.integrations.vllm.endpoints import EngineVectors, FreshMetrics, SteeringEndpoints, router
from steerguard.integrations.vllm.engine_core import CoreRegistry
from steerguard.integrations.vllm.wire import encode_plan, plan_of
from steerguard.vectors import SteeringVector, write_vector

VECTOR = SteeringVector({0: np.ones(4, np.float32)}, 4)
SPEC = {"blend": [{"vector": VECTOR.digest, "alpha": 1.0}]}


class Core:
    """The engine core as its client reaches it, with the requests that are unfinished in it."""

    def __init__(self) -> None:
        self.registry = CoreRegistry()
        self.unfinished: list[Any] = []
        self.while_asked: Any = lambda: None

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        self.while_asked()
        match method:
            case "steerguard_register":
                return self.registry.register(self._rpc, args[0])
            case "steerguard_remove":
                return self.registry.remove(self._rpc, args[0], self.unfinished)
        return self.registry.state(self._rpc, self.unfinished)

    def _rpc(self, *_: Any, **__: Any) -> list[Any]:
        return [{"bytes_allocated": 0}]


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def engine(core: Core) -> Iterator[EngineVectors]:
    model = SimpleNamespace(served_model_name="m", dtype="torch.float32")
    client: Any = SimpleNamespace(engine_core=core, vllm_config=SimpleNamespace(model_config=model))
    admission = Admission(num_layers=2, hidden_size=4, dtype_max=3e38, blend_layers=2, config=PluginConfig())
    vectors = EngineVectors(client, admission)
    yield vectors
    REGISTRY.unregister(vectors.metrics)


async def test_a_vector_in_use_can_be_asked_for_while_its_removal_is_refused(engine: EngineVectors, core: Core) -> None:
    await engine.register(write_vector(VECTOR), VECTOR)
    plan = encode_plan(parse_blend(SPEC))
    core.unfinished = [plan_of(SimpleNamespace(extra_args={"steerguard.plan": plan}))]
    core.while_asked = lambda: engine.admission.admit(SPEC)  # another request comes in
    assert await engine.remove(VECTOR.digest) == "in_use"
    core.unfinished, core.while_asked = [], lambda: None
    assert await engine.remove(VECTOR.digest) == "removed"
    assert await engine.remove(VECTOR.digest) == "unknown"


async def test_an_engine_holds_no_more_vectors_than_it_was_given_memory_for(engine: EngineVectors) -> None:
    vectors = [SteeringVector({0: np.full(4, 1 + i, np.float32)}, 4) for i in range(3)]
    engine.admission.max_vector_bytes = 2 * 16
    for vector in vectors[:2]:
        assert await engine.register(write_vector(vector), vector)
    with pytest.raises(BlendError, match=r"at most 0 more bytes .*, found 16"):
        await engine.register(write_vector(vectors[2]), vectors[2])
    assert (await engine.state())["vector_bytes"] == 32
    assert not await engine.register(write_vector(vectors[0]), vectors[0])  # which is there
    await engine.remove(vectors[0].digest)
    assert await engine.register(write_vector(vectors[2]), vectors[2])


async def test_a_client_that_leaves_within_its_file_is_no_fault_of_the_server(engine: EngineVectors) -> None:
    app = FastAPI()
    app.include_router(router)
    app.state.steerguard = engine
    events: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"abc", "more_body": True},
        {"type": "http.disconnect"},
    ]
    path = f"/v1/steering/vectors/{VECTOR.digest}"
    scope = {"type": "http", "method": "PUT", "path": path, "headers": [], "query_string": b"", "http_version": "1.1"}

    async def receive() -> dict[str, Any]:
        return events.pop(0)

    async def send(_message: Any) -> None:
        pass

    await app(scope, receive, send)
    assert not engine.admission.vectors


async def test_metrics_are_answered_when_the_engine_is_not(engine: EngineVectors, core: Core) -> None:
    def die() -> None:
        raise RuntimeError("EngineCore encountered an issue")

    answered: list[str] = []

    async def vllms_own(scope: Any, _receive: Any, _send: Any) -> None:
        answered.append(scope["path"])

    core.while_asked = die
    app = SimpleNamespace(state=SimpleNamespace(steerguard=engine))
    await FreshMetrics(vllms_own)({"type": "http", "path": "/metrics", "app": app}, None, None)  # type: ignore[arg-type]
    assert answered == ["/metrics"]


@pytest.mark.parametrize(
    ("servers", "engines", "named"), [(2, 1, "--api-server-count 1"), (1, 2, r"--data-parallel-size 1\), found 2")]
)
async def test_the_start_stops_where_others_would_not_know_what_was_registered(
    monkeypatch: pytest.MonkeyPatch, servers: int, engines: int, named: str
) -> None:
    monkeypatch.setattr(endpoints, "is_installed", lambda: True)
    parallel = SimpleNamespace(data_parallel_size=engines, data_parallel_size_local=1, local_engines_only=False)
    client = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel))
    with pytest.raises(RuntimeError, match=named):
        await SteeringEndpoints().init_state(client, State(), Namespace(api_server_count=servers))


@pytest.mark.parametrize(
    ("where", "setting", "named"),
    [
        ("parallel_config", {"use_ubatching": True}, "--enable-dbo"),
        ("parallel_config", {"prefill_context_parallel_size": 2}, "prefill context parallelism"),
        ("model_config", {"enable_sleep_mode": True}, "--enable-sleep-mode"),
        ("runner", {"adaptive_verification": object()}, "adaptive verification"),
        ("envs", {"VLLM_USE_RUST_FRONTEND": True}, "VLLM_USE_RUST_FRONTEND"),
    ],
)
def test_the_start_stops_where_wrong_tokens_would_be_steered(
    monkeypatch: pytest.MonkeyPatch, where: str, setting: dict[str, Any], named: str
) -> None:
    parts = {
        "parallel_config": SimpleNamespace(),
        "model_config": SimpleNamespace(),
        "runner": SimpleNamespace(),
        "envs": SimpleNamespace(VLLM_USE_RUST_FRONTEND=False),
    }
    monkeypatch.setattr(patches, "_module", parts.get)
    runner = parts["runner"]
    runner.vllm_config = SimpleNamespace(parallel_config=parts["parallel_config"], model_config=parts["model_config"])
    patches._refuse_unsupported(runner)
    vars(parts[where]).update(setting)
    with pytest.raises(RuntimeError, match=named):
        patches._refuse_unsupported(runner)
