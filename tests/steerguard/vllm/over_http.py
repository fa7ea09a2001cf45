"""Asking the session's engine over HTTP, and what the reference says to the same: for the tests of a real server."""

import json
from typing import Any

import numpy as np
import requests

from steerguard.blend import parse_blend, sum_row
from steerguard.vectors import SteeringVector, write_vector
from tests.engine import TestEngine
from tests.steerguard.vllm.reference import Reference

HIDDEN_SIZE = 576
NUM_LAYERS = 30
PROMPT = "The people of the small town by the sea have always lived from fishing, and in winter they"
LONG_PROMPT = " ".join([PROMPT, "mend their nets and wait for the ice to go."] * 5)  # several KV blocks of 32
TOKENS = 12

BlendSpec = list[dict[str, Any]]


def random_vector(seed: int, *blocks: int, scale: float = 2.0, name: str | None = None) -> SteeringVector:
    rng = np.random.default_rng(seed)
    rows = {b: (rng.standard_normal(HIDDEN_SIZE) * scale).astype(np.float32) for b in blocks}
    return SteeringVector(rows, HIDDEN_SIZE, name=name or f"random-{seed}")


SMALL = random_vector(1, 10)
DEEP = random_vector(2, 3, 10, 29)
FIRST = random_vector(3, 0, 18)
VECTORS = {v.digest: v for v in (SMALL, DEEP, FIRST)}


def component(vector: SteeringVector, alpha: float, positions: str = "all", **more: Any) -> dict[str, Any]:
    return {"vector": vector.digest, "alpha": alpha, "positions": positions, **more}


BLENDS = {
    "one vector": [component(SMALL, 1.5)],
    "negative": [component(SMALL, -1.5)],
    "first and last block": [component(DEEP, 1.0), component(FIRST, 1.0)],
    "three on one block": [component(SMALL, 1.0), component(DEEP, -0.5), component(SMALL, 0.25)],
    "prompt": [component(DEEP, 1.5, "prompt")],
    "response": [component(DEEP, 1.5, "response")],
    "phases that differ": [component(DEEP, 1.5, "prompt"), component(FIRST, 1.0, "response"), component(SMALL, 1.0)],
    "subset of blocks": [component(DEEP, 1.5, layers=[3, 29])],
}


def vector_url(engine: TestEngine, vector: SteeringVector) -> str:
    return f"{engine.url}/v1/steering/vectors/{vector.digest}"


def put(engine: TestEngine, vector: SteeringVector, **more: Any) -> requests.Response:
    body = more.get("body", write_vector(vector))
    return requests.put(vector_url(engine, vector), data=body, headers=engine.headers)


def delete(engine: TestEngine, vector: SteeringVector) -> int:
    """The status of taking a vector off the engine."""
    return requests.delete(vector_url(engine, vector), headers=engine.headers).status_code


def is_in_use(engine: TestEngine, vector: SteeringVector) -> bool:
    in_use: bool = requests.get(vector_url(engine, vector), headers=engine.headers).json()["in_use"]
    return in_use


def state_of(engine: TestEngine) -> dict[str, Any]:
    state: dict[str, Any] = requests.get(f"{engine.url}/v1/steering", headers=engine.headers).json()
    return state


def complete(
    engine: TestEngine,
    blend: BlendSpec | None,
    *,
    on_overdose: str = "reject",
    stream: bool = False,
    timeout_s: float | None = None,
    **body: Any,
) -> requests.Response:
    """A greedy completion; a streamed one is returned as soon as it has begun."""
    request = {"model": engine.model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, **body}
    if stream:
        request["stream"] = True
    if blend is not None:
        spec = {"blend": blend, "max_dose": 8, "on_overdose": on_overdose}
        request["vllm_xargs"] = {"steerguard": json.dumps(spec)}
    return requests.post(
        f"{engine.url}/v1/completions", json=request, headers=engine.headers, stream=stream, timeout=timeout_s
    )


def token_ids(response: requests.Response) -> list[int]:
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def reference_tokens(
    reference: Reference, blend: BlendSpec, prompt: str | list[int] = PROMPT, count: int = TOKENS, **more: Any
) -> list[int]:
    """What the hooked reference answers; `vectors` names those that aren't among VECTORS."""
    components = parse_blend({"blend": blend}).components
    vectors = {**VECTORS, **{v.digest: v for v in more.get("vectors", ())}}
    return reference.greedy(
        reference.tokens(prompt) if isinstance(prompt, str) else prompt,
        count,
        prompt_row=sum_row((c for c in components if c.adds_in("prompt")), vectors),
        response_row=sum_row((c for c in components if c.adds_in("response")), vectors),
    )


def metric(engine: TestEngine, name: str) -> float:
    """A metric's value, over all its labels or, where `name` has them, for those."""
    lines = requests.get(f"{engine.url}/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def hits(engine: TestEngine) -> float:
    """Prompt tokens that the engine took from its prefix cache so far."""
    return metric(engine, "vllm:prefix_cache_hits_total")
