"""What the engine core counts as in use, at the seams through which requests reach it.

`Core` stands in for vLLM's `EngineCore`: the methods that the plugin replaces, and no engine behind them.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from steerguard.blend import UnknownVector, parse_blend
from steerguard.integrations.vllm import patches
from steerguard.integrations.vllm.wire import PLAN_KEY, encode_plan
from steerguard.vectors import SteeringVector, write_vector

VECTOR = SteeringVector({0: np.ones(4, np.float32)}, 4)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Core:
        scheduler = SimpleNamespace(requests={})

        def preprocess_add_request(self, request: Any) -> Any:
            if request.broken:
                raise RuntimeError("no grammar backend")
            return request

        def add_request(self, request: Any) -> None:
            self.scheduler.requests[request.request_id] = request

        def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
            return [{"bytes_allocated": 0}]

    monkeypatch.setattr(patches, "_module", lambda _: SimpleNamespace(EngineCore=Core))
    patches._patch_engine_core()
    core: Any = Core()
    core.steerguard_register(write_vector(VECTOR))
    return core


def request(*, broken: bool = False) -> Any:
    plan = encode_plan(parse_blend({"blend": [{"vector": VECTOR.digest, "alpha": 1.0}]}))
    return SimpleNamespace(
        request_id="one", broken=broken, sampling_params=SimpleNamespace(extra_args={PLAN_KEY: plan})
    )


def test_a_vector_is_in_use_from_its_requests_arrival_on(core: Any) -> None:
    arrived = core.preprocess_add_request(request())
    assert core.steerguard_remove(VECTOR.digest) == "in_use"
    core.add_request(arrived)
    assert core.steerguard_remove(VECTOR.digest) == "in_use"
    core.scheduler.requests.clear()
    assert core.steerguard_remove(VECTOR.digest) == "removed"
    with pytest.raises(UnknownVector):
        core.preprocess_add_request(request())


def test_a_request_that_fails_on_its_way_leaves_nothing_in_use(core: Any) -> None:
    with pytest.raises(RuntimeError, match="no grammar backend"):
        core.preprocess_add_request(request(broken=True))
    assert core.steerguard_state()["in_use"] == []
    assert core.steerguard_remove(VECTOR.digest) == "removed"
