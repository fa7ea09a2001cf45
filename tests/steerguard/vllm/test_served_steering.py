"""Steering through a real vLLM server: right to the token, mixed in one batch, refused in the open."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests

from steerguard.blend import parse_blend
from steerguard.vectors import SteeringVector, write_vector
from tests.engine import TestEngine
from tests.steerguard.vllm.over_http import (
    BLENDS,
    DEEP,
    HIDDEN_SIZE,
    LONG_PROMPT,
    PROMPT,
    SMALL,
    TOKENS,
    VECTORS,
    BlendSpec,
    complete,
    component,
    delete,
    hits,
    metric,
    put,
    random_vector,
    reference_tokens,
    state_of,
    token_ids,
)
from tests.steerguard.vllm.reference import Reference

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", BLENDS)
def test_a_blend_gives_the_tokens_of_the_hooked_reference(server: TestEngine, reference: Reference, name: str) -> None:
    served = token_ids(complete(server, BLENDS[name], return_token_ids=True))
    assert served == reference_tokens(reference, BLENDS[name])


def test_blends_that_differ_share_a_batch_and_each_gets_its_own(server: TestEngine, reference: Reference) -> None:
    asked = [None, *BLENDS.values()]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda b: token_ids(complete(server, b, return_token_ids=True)), asked))
    assert answers == [reference_tokens(reference, blend or []) for blend in asked]


def test_steering_changes_the_answer(server: TestEngine) -> None:
    answers = [tuple(token_ids(complete(server, b, return_token_ids=True))) for b in (None, *BLENDS.values())]
    assert len(set(answers)) == len(answers)


def test_a_prompt_of_one_token_is_steered_as_response(server: TestEngine, reference: Reference) -> None:
    for positions in ("all", "response", "prompt"):
        blend = [component(DEEP, 1.5, positions)]
        served = token_ids(complete(server, blend, prompt="Once", return_token_ids=True))
        assert served == reference_tokens(reference, blend, "Once")


@pytest.mark.parametrize(
    "first, second", list(itertools.permutations([None, "one vector", "prompt", "phases that differ"], 2))
)
def test_kv_blocks_are_not_shared_by_blends_that_steer_them_differently(
    server: TestEngine, reference: Reference, first: str | None, second: str | None
) -> None:
    prompt = f"{first} then {second}. {LONG_PROMPT}"
    for name in (first, second):
        blend = BLENDS[name] if name else []
        served = token_ids(complete(server, blend or None, prompt=prompt, return_token_ids=True))
        assert served == reference_tokens(reference, blend, prompt)


def test_a_continued_conversation_recomputes_what_was_steered_as_response(
    server: TestEngine, reference: Reference
) -> None:
    blend = BLENDS["response"]
    first = complete(server, blend, prompt=f"Conversation. {LONG_PROMPT}", max_tokens=40).json()["choices"][0]["text"]
    longer = f"Conversation. {LONG_PROMPT}{first} And then"
    for again in (blend, []):
        served = token_ids(complete(server, again or None, prompt=longer, return_token_ids=True))
        assert served == reference_tokens(reference, again, longer)


def test_response_blends_share_the_prompts_kv_with_everyone(server: TestEngine) -> None:
    prompt = f"Shared by all. {LONG_PROMPT}"
    complete(server, None, prompt=prompt)
    for alpha in (0.5, 1.0):
        before = hits(server)
        complete(server, [component(SMALL, alpha, "response")], prompt=prompt)
        assert hits(server) - before >= 64


def test_the_same_blend_twice_hits_and_another_misses(server: TestEngine) -> None:
    prompt = f"Asked twice. {LONG_PROMPT}"
    complete(server, BLENDS["one vector"], prompt=prompt)
    before = hits(server)
    complete(server, BLENDS["one vector"], prompt=prompt)
    assert hits(server) - before >= 64
    before = hits(server)
    complete(server, BLENDS["negative"], prompt=prompt)
    assert hits(server) == before


UNKNOWN = "0" * 64
BAD_SPECS = {
    "unknown vector": ({"blend": [{"vector": UNKNOWN, "alpha": 1}]}, "steerguard.blend.vector", UNKNOWN),
    "not JSON": ("{", "steerguard", "JSON"),
    "not an object": ("[]", "steerguard", "object"),
    "no blend": ({}, "steerguard.blend", "components"),
    "alpha is NaN": (
        f'{{"blend": [{{"vector": "{SMALL.digest}", "alpha": NaN}}]}}',
        "steerguard.blend[0].alpha",
        "finite",
    ),
    "alpha is text": ({"blend": [component(SMALL, "1")]}, "steerguard.blend[0].alpha", "number"),  # type: ignore[arg-type]
    "positions misspelled": ({"blend": [component(SMALL, 1, "answer")]}, "steerguard.blend[0].positions", "answer"),
    "unknown field": ({"blend": [component(SMALL, 1, scale=2)]}, "steerguard.blend[0].scale", "unknown"),
    "block outside the model": ({"blend": [component(SMALL, 1, layers=[30])]}, "steerguard.blend.layers", "30"),
    "block the vector lacks": ({"blend": [component(SMALL, 1, layers=[11])]}, "steerguard.blend.layers", "11"),
    "too many components": ({"blend": [component(SMALL, 0.01)] * 65}, "steerguard.blend", "64"),
    "beyond the dtype": ({"blend": [component(SMALL, 1e300)]}, "steerguard.blend", ""),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", BAD_SPECS)
def test_a_bad_spec_is_refused_with_the_field_named(server: TestEngine, name: str, stream: bool) -> None:
    spec, param, said = BAD_SPECS[name]
    body: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": stream,
        "vllm_xargs": {"steerguard": spec if isinstance(spec, str) else json.dumps(spec)},
    }
    response = requests.post(f"{server.url}/v1/chat/completions", json=body, headers=server.headers)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"].startswith(f"vllm_xargs.{param}")
    assert said in error["message"]


# vLLM streams no beam search of a plain completion.
@pytest.mark.parametrize(
    "path, stream", [("completions", False), ("chat/completions", False), ("chat/completions", True)]
)
def test_a_steered_beam_search_is_refused_rather_than_unsteered(server: TestEngine, path: str, stream: bool) -> None:
    body: dict[str, Any] = {
        "model": server.model,
        "prompt": PROMPT,
        "messages": [{"role": "user", "content": PROMPT}],
        "use_beam_search": True,
        "max_tokens": 4,
        "stream": stream,
    }
    steering = {"vllm_xargs": {"steerguard": json.dumps({"blend": BLENDS["one vector"]})}}
    refused = requests.post(f"{server.url}/v1/{path}", json={**body, **steering}, headers=server.headers)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "use_beam_search")
    assert requests.post(f"{server.url}/v1/{path}", json=body, headers=server.headers).status_code == 200


def test_a_bad_spec_leaves_its_batchmates_alone(server: TestEngine, reference: Reference) -> None:
    expected = reference_tokens(reference, BLENDS["one vector"])
    bad = [{"vector": UNKNOWN, "alpha": 1.0}]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(complete, server, b, return_token_ids=True) for b in [BLENDS["one vector"], bad] * 4]
    assert [r.result().status_code for r in asked] == [200, 400] * 4
    assert all(token_ids(r.result()) == expected for r in asked[::2])


def test_the_answer_names_the_blend_that_was_applied(server: TestEngine) -> None:
    blend = BLENDS["phases that differ"]
    assert complete(server, blend).headers["x-steerguard-blend"] == parse_blend({"blend": blend}).digest
    assert "x-steerguard-blend" not in complete(server, None).headers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_usage_says_how_many_tokens_were_steered(server: TestEngine, stream: bool) -> None:
    def usage(blend: list[dict[str, Any]] | None) -> dict[str, Any]:
        more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        response = complete(server, blend, **more)
        if not stream:
            return response.json()["usage"]
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
        return json.loads(events[-1])["usage"]

    length = usage(None)["prompt_tokens"]
    assert "steering" not in usage(None)
    for positions, prompt, response in (
        ("all", length - 1, TOKENS),
        ("prompt", length - 1, 0),
        ("response", 0, TOKENS),
    ):
        blend = [component(SMALL, 0.1, positions)]
        steering = usage(blend)["steering"]
        assert (steering["prompt_tokens"], steering["response_tokens"]) == (prompt, response)
        assert steering["blend"] == parse_blend({"blend": blend}).digest
        assert steering["dose"] > 0


def test_a_plan_forged_by_the_client_does_nothing(server: TestEngine) -> None:
    plain = complete(server, None, return_token_ids=True)
    forged = complete(
        server, None, return_token_ids=True, vllm_xargs={"steerguard.plan": [DEEP.digest, DEEP.digest, 1]}
    )
    assert token_ids(forged) == token_ids(plain)


def test_steering_routes_want_the_engines_key(server: TestEngine) -> None:
    for method, path in (
        ("GET", ""),
        ("GET", "/vectors"),
        ("PUT", f"/vectors/{UNKNOWN}"),
        ("DELETE", f"/vectors/{UNKNOWN}"),
    ):
        assert requests.request(method, f"{server.url}/v1/steering{path}").status_code == 401


def test_a_vector_can_be_registered_twice_listed_and_removed(server: TestEngine) -> None:
    vector = random_vector(7, 5)
    url = f"{server.url}/v1/steering/vectors/{vector.digest}"
    assert (put(server, vector).status_code, put(server, vector).status_code) == (201, 200)
    listed = requests.get(f"{server.url}/v1/steering/vectors", headers=server.headers).json()["data"]
    assert [entry["layers"] for entry in listed if entry["digest"] == vector.digest] == [[5]]
    assert requests.delete(url, headers=server.headers).status_code == 200
    assert requests.delete(url, headers=server.headers).status_code == 404
    assert complete(server, [component(vector, 1.0)]).status_code == 400


def test_a_vector_in_use_is_not_removed(server: TestEngine) -> None:
    vector = random_vector(8, 5, scale=0.5)
    put(server, vector)
    url = f"{server.url}/v1/steering/vectors/{vector.digest}"
    with ThreadPoolExecutor(1) as pool:
        body: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
        asked = pool.submit(complete, server, [component(vector, 1.0)], **body)
        while not any(
            entry["in_use"]
            for entry in requests.get(f"{server.url}/v1/steering/vectors", headers=server.headers).json()["data"]
        ):
            assert not asked.done(), "answered before it was seen in use"
        assert requests.delete(url, headers=server.headers).status_code == 409
        assert asked.result().status_code == 200
    assert requests.delete(url, headers=server.headers).status_code == 200


@pytest.mark.parametrize(
    "spoil, param",
    [
        (lambda v: b"not a vector", "header length"),
        (lambda v: write_vector(random_vector(9, 4)), "digest"),
        (lambda v: write_vector(v)[:-10], "file"),
    ],
    ids=["no vector", "another vector", "cut short"],
)
def test_a_bad_vector_is_refused_and_not_held(server: TestEngine, spoil: Any, param: str) -> None:
    vector = random_vector(10, 4)
    refused = put(server, vector, body=spoil(vector))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    url = f"{server.url}/v1/steering/vectors/{vector.digest}"
    assert requests.get(url, headers=server.headers).status_code == 404


def test_a_vector_of_another_model_is_refused(server: TestEngine) -> None:
    narrow = SteeringVector({3: np.ones(64, np.float32)}, 64)
    deep = random_vector(11, 30)
    assert put(server, narrow).json()["error"]["param"] == "hidden_size"
    assert put(server, deep).json()["error"]["param"] == "block index"


def test_the_engine_says_what_it_holds(server: TestEngine) -> None:
    state = requests.get(f"{server.url}/v1/steering", headers=server.headers).json()
    assert (state["hidden_size"], state["num_layers"], state["dtype"]) == (HIDDEN_SIZE, 30, "float32")
    assert state["vectors"] >= len(VECTORS)
    assert state["bytes_allocated"] > 0
    assert 0 < state["rows_in_use"] <= state["rows_total"] == 32


def test_metrics_count_the_tokens_that_were_steered(server: TestEngine) -> None:
    names = ("steerguard:steered_prompt_tokens_total", "steerguard:steered_response_tokens_total")
    prompt = "Counted once. " + PROMPT  # in no cache yet, so that all of it is computed

    def added(blend: list[dict[str, Any]] | None) -> list[float]:
        before = [metric(server, name) for name in names]
        complete(server, blend, prompt=prompt, max_tokens=5, ignore_eos=True)
        return [metric(server, name) - b for name, b in zip(names, before, strict=True)]

    length = complete(server, None, prompt=prompt, max_tokens=1).json()["usage"]["prompt_tokens"]
    # The last of five tokens is answered, but never computed on.
    assert added([component(SMALL, 0.1)]) == [length - 1, 5]
    assert added([component(SMALL, 0.2, "prompt")]) == [length - 1, 0]
    assert added(None) == [0, 0]


def test_metrics_count_refusals_by_reason_and_what_is_held(server: TestEngine) -> None:
    before = metric(server, 'steerguard:refused_specs_total{reason="UnknownVector"}')
    complete(server, [{"vector": UNKNOWN, "alpha": 1.0}])
    assert metric(server, 'steerguard:refused_specs_total{reason="UnknownVector"}') == before + 1
    assert metric(server, "steerguard:vectors") >= len(VECTORS)
    assert metric(server, "steerguard:bytes") > 0


def test_a_hostile_blend_leaves_nothing_in_the_kv_cache_that_harms_others(
    server: TestEngine, reference: Reference
) -> None:
    expected = reference_tokens(reference, [])
    for alpha in (1e3, 1e10, 1e37, -1e37, 3.4e38):
        answer = complete(server, [component(SMALL, alpha)], prompt=LONG_PROMPT)
        assert answer.status_code == 400, alpha
    strongest = requests.get(f"{server.url}/v1/steering", headers=server.headers).json()
    limit = strongest["dose_ceiling"] * strongest["norms"]["10"] / SMALL.norms[10]
    with ThreadPoolExecutor(8) as pool:
        hostile = [
            pool.submit(complete, server, [component(SMALL, limit * 0.99)], prompt=LONG_PROMPT) for _ in range(4)
        ]
        beside = [pool.submit(complete, server, None, return_token_ids=True) for _ in range(4)]
    assert [r.result().status_code for r in hostile] == [200] * 4
    # Asked again, when the hostile blocks have been freed and are used again.
    beside_after = [complete(server, None, return_token_ids=True, cache_salt=f"{i}") for i in range(4)]
    assert [token_ids(r) for r in [*(b.result() for b in beside), *beside_after]] == [expected] * 8


@pytest.mark.parametrize("direction", ["random", "one dimension"])
def test_the_strongest_blend_that_is_let_in_harms_no_neighbor(
    server: TestEngine, reference: Reference, direction: str
) -> None:
    state = state_of(server)
    unit = np.zeros(HIDDEN_SIZE, np.float32)
    if direction == "random":
        unit = np.random.default_rng(13).standard_normal(HIDDEN_SIZE).astype(np.float32)
    else:
        unit[0] = 1
    unit /= np.linalg.norm(unit)
    # The same dose at every block, so that all of them are steered as strongly as the ceiling lets anyone.
    vector = SteeringVector({int(block): unit * norm for block, norm in state["norms"].items()}, HIDDEN_SIZE)
    assert put(server, vector).status_code == 201
    hostile = [component(vector, 1e4)]
    beside: list[BlendSpec] = [[], BLENDS["one vector"]] * 2
    with ThreadPoolExecutor(8) as pool:
        strongest = [
            pool.submit(complete, server, hostile, on_overdose="clamp", prompt=LONG_PROMPT, logprobs=1)
            for _ in range(4)
        ]
        neighbors = [pool.submit(complete, server, blend or None, return_token_ids=True) for blend in beside]
    for answer in (asked.result() for asked in strongest):
        assert answer.status_code == 200, answer.text
        assert float(answer.headers["x-steerguard-dose"]) == pytest.approx(state["dose_ceiling"], rel=1e-3)
        assert np.isfinite(answer.json()["choices"][0]["logprobs"]["token_logprobs"]).all()
    # Asked again, when the hostile blocks have been freed and are used again.
    after = [
        complete(server, blend or None, return_token_ids=True, cache_salt=f"{direction} {i}")
        for i, blend in enumerate(beside)
    ]
    expected = [reference_tokens(reference, blend) for blend in beside]
    assert [token_ids(n.result()) for n in neighbors] == expected
    assert [token_ids(answer) for answer in after] == expected
    assert delete(server, vector) == 200


def test_the_dose_of_an_answer_is_that_of_the_engines_norms(server: TestEngine) -> None:
    norms = requests.get(f"{server.url}/v1/steering", headers=server.headers).json()["norms"]
    assert list(norms) == [str(block) for block in range(30)]
    answer = complete(server, [component(SMALL, 1.5)])
    assert float(answer.headers["x-steerguard-dose"]) == pytest.approx(1.5 * SMALL.norms[10] / norms["10"], rel=1e-3)


def test_measured_norms_are_those_of_the_reference(server: TestEngine, reference: Reference) -> None:
    from steerguard.integrations.vllm.norms import PROBE_TEXTS, SINK_FACTOR

    served_norms = requests.get(f"{server.url}/v1/steering", headers=server.headers).json()["norms"]
    measured = reference.norms([reference.tokens(text) for text in PROBE_TEXTS], SINK_FACTOR)
    assert [served_norms[str(block)] for block in range(30)] == pytest.approx(measured, rel=0.02)


def test_n_answers_of_one_request_are_all_steered(server: TestEngine, reference: Reference) -> None:
    blend = BLENDS["one vector"]
    # Greedy by top_k: vLLM takes no n above 1 at temperature 0.
    choices = complete(server, blend, n=3, temperature=1, top_k=1, return_token_ids=True).json()["choices"]
    assert [c["token_ids"] for c in choices] == [reference_tokens(reference, blend)] * 3


def test_prompt_logprobs_are_those_of_the_steered_model(server: TestEngine) -> None:
    def scores(blend: list[dict[str, Any]] | None) -> list[float]:
        entries = complete(server, blend, prompt_logprobs=0, max_tokens=1).json()["choices"][0]["prompt_logprobs"]
        return [next(iter(e.values()))["logprob"] for e in entries[1:]]

    plain, steered = scores(None), scores(BLENDS["prompt"])
    assert scores(BLENDS["response"]) == pytest.approx(plain, abs=1e-4)
    assert not np.allclose(plain, steered, atol=0.1)


def test_structured_output_holds_under_steering(server: TestEngine) -> None:
    schema = {"type": "object", "properties": {"town": {"type": "string", "maxLength": 20}}, "required": ["town"]}
    body: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Name a town."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "town", "schema": schema}},
        "temperature": 0,
        "max_tokens": 60,
        "vllm_xargs": {"steerguard": json.dumps({"blend": BLENDS["one vector"]})},
    }
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, headers=server.headers).json()
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"town"}
