"""A list of prompts with a list of skills: one answer out of several engines' answers."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from personas.models import Persona, SteeringVector, Tenant
from tests.conftest import MakeVector
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import (
    MODEL,
    StubEngine,
    completes,
    refuses,
    running_stub,
    streams,
    text_chunk,
)

LISTS: dict[str, Any] = {
    "model": MODEL,
    "prompt": ["a", "b", "c", "d"],
    "steer_skill": ["pirate", None, "calm", "pirate"],
    "steer_alpha": [2.0, None, 1.0, 2.0],
}


@pytest.fixture
def skills(transactional_db: None, acme: Tenant, make_vector: MakeVector) -> dict[str, SteeringVector]:
    return {name: make_vector(acme, name, seed=seed) for seed, name in enumerate(("pirate", "calm"), start=1)}


@pytest.fixture
def completing(stub: StubEngine, skills: dict[str, SteeringVector]) -> StubEngine:
    stub.does = completes
    return stub


def post(gateway: Gateway, key: str, **body: Any) -> httpx.Response:
    return gateway.http(key).post("/v1/completions", json={**LISTS, **body})


def events_of(answer: httpx.Response) -> Iterator[Any]:
    for event in answer.text.split("\n\n"):
        if event and event != "data: [DONE]":
            yield json.loads(event.removeprefix("data: "))


def test_each_prompt_is_answered_with_its_own_skill(
    gateway: Gateway, completing: StubEngine, acme_key: str, skills: dict[str, SteeringVector]
) -> None:
    extra = {name: LISTS[name] for name in ("steer_skill", "steer_alpha")}
    answer = gateway.openai(acme_key).completions.create(model=MODEL, prompt=LISTS["prompt"], n=2, extra_body=extra)

    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (index * 2 + number, f"{prompt}.{number}") for index, prompt in enumerate("abcd") for number in (0, 1)
    ]
    assert answer.model == MODEL
    assert answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (40, 8)
    asked = {
        json.loads(body["vllm_xargs"]["steerguard"])["blend"][0]["vector"] if "vllm_xargs" in body else None: body
        for body in completing.requests
    }
    assert asked[skills["pirate"].digest]["prompt"] == ["a", "d"]
    assert asked[skills["calm"].digest]["prompt"] == ["c"]
    assert asked[None]["prompt"] == ["b"]
    # vLLM names requests by it, and two at once can't have one name.
    assert len({headers["x-request-id"] for headers in completing.headers}) == 3


def test_scalars_go_for_all_prompts_in_one_request(gateway: Gateway, completing: StubEngine, acme_key: str) -> None:
    answer = post(gateway, acme_key, steer_skill="pirate", steer_alpha=2)
    assert [choice["text"] for choice in answer.json()["choices"]] == ["a.0", "b.0", "c.0", "d.0"]
    assert len(completing.requests) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": [7, 8, 9]}),
    ],
)
def test_a_list_of_one_is_good_for_one_prompt(
    gateway: Gateway, stub: StubEngine, acme_key: str, skills: dict[str, SteeringVector], path: str, body: Any
) -> None:
    asked = {"model": MODEL, **body, "steer_skill": ["pirate"], "steer_alpha": [3]}
    assert gateway.http(acme_key).post(path, json=asked).status_code == 200
    assert stub.steering["blend"][0]["alpha"] == 3.0
    two = gateway.http(acme_key).post(path, json={**asked, "steer_skill": ["pirate", "calm"]})
    assert (two.status_code, two.json()["error"]["param"]) == (400, "steer_skill")


@pytest.mark.parametrize("field", ["steer_skill", "steer_alpha"])
def test_another_length_is_a_400_that_names_the_field_and_both_lengths(
    gateway: Gateway, completing: StubEngine, acme_key: str, field: str
) -> None:
    error = post(gateway, acme_key, **{field: LISTS[field][:3]}).json()["error"]
    assert error["param"] == field
    assert "3 elements" in error["message"] and "4 prompts" in error["message"]
    assert completing.requests == []


def test_an_unknown_skill_in_a_list_is_a_400(gateway: Gateway, completing: StubEngine, acme_key: str) -> None:
    answer = post(gateway, acme_key, steer_skill=["pirate", "nobody", "calm", None])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "steer_skill")
    assert completing.requests == []


def test_the_personas_own_blend_stays_under_all_of_them(
    gateway: Gateway, completing: StubEngine, acme_key: str, support: Persona
) -> None:
    post(gateway, acme_key, model="support")
    lengths = sorted(len(json.loads(body["vllm_xargs"]["steerguard"])["blend"]) for body in completing.requests)
    assert lengths == [1, 2, 2]


class TestAStream:
    def test_is_merged_with_one_end_and_usage_once(
        self, gateway: Gateway, completing: StubEngine, acme_key: str
    ) -> None:
        answer = post(gateway, acme_key, stream=True, n=2, stream_options={"include_usage": True})
        events = list(events_of(answer))
        assert answer.text.count("data: [DONE]") == 1
        assert answer.text.endswith("data: [DONE]\n\n")
        said = {choice["index"]: choice["text"] for event in events for choice in event["choices"]}
        assert said == {
            index * 2 + number: f"{prompt}.{number}" for index, prompt in enumerate("abcd") for number in (0, 1)
        }
        usages = [event["usage"] for event in events if event.get("usage")]
        assert [(usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages] == [(40, 8)]
        assert events[-1]["usage"]
        assert len({(event["id"], event["model"]) for event in events}) == 1

    def test_has_no_usage_where_none_was_asked_for(
        self, gateway: Gateway, completing: StubEngine, acme_key: str
    ) -> None:
        events = list(events_of(post(gateway, acme_key, stream=True)))
        assert all(event["choices"] and not event.get("usage") for event in events)

    def test_that_breaks_off_in_one_part_ends_with_an_error(
        self, gateway: Gateway, completing: StubEngine, acme_key: str
    ) -> None:
        async def breaks(stub: StubEngine, request: Any, body: Any) -> Any:
            how = "cut" if body["prompt"] == ["c"] else "hangs"
            return await streams(text_chunk(0, "x"), then=how)(stub, request, body)

        completing.does = breaks
        events = list(events_of(post(gateway, acme_key, stream=True)))
        assert events[-1]["error"]["code"] == "engine_error"
        eventually(lambda: completing.aborts == 2)

    def test_whose_client_leaves_is_aborted_everywhere(
        self, gateway: Gateway, completing: StubEngine, acme_key: str
    ) -> None:
        completing.does = streams(text_chunk(0, "x"), then="hangs")
        body = {**LISTS, "stream": True}
        with gateway.http(acme_key).stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()  # dropping it would hang up
            next(lines)
            assert completing.aborts == 0
        eventually(lambda: completing.aborts == 3)

    def test_that_cannot_begin_in_one_part_is_an_error_and_no_stream(
        self, gateway: Gateway, completing: StubEngine, acme_key: str
    ) -> None:
        async def refuses_one(stub: StubEngine, request: Any, body: Any) -> Any:
            if body["prompt"] == ["c"]:
                await asyncio.to_thread(eventually, others_are_under_way)
                return await refuses(400, "no such thing", "prompt")(stub, request, body)
            return await streams(text_chunk(0, "x"), then="hangs")(stub, request, body)

        def others_are_under_way() -> bool:
            return sum(asked["prompt"] != ["c"] for asked in completing.requests) == others

        completing.does = refuses_one
        others = 0
        for stream in (True, False):
            others += 2
            answer = post(gateway, acme_key, stream=stream)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        eventually(lambda: completing.aborts == 4)


def test_headers_list_what_was_applied(gateway: Gateway, completing: StubEngine, acme_key: str) -> None:
    answer = post(gateway, acme_key)
    assert answer.headers["x-steerguard-blend"] == f"{'b' * 64}, none, {'b' * 64}"
    assert answer.headers["x-steerguard-engine"] == "stub"


def test_parts_go_to_several_engines(gateway: Gateway, completing: StubEngine, register: Any, acme_key: str) -> None:
    with running_stub() as other:
        register(other.url, name="other")
        other.does = completes
        eventually(lambda: post(gateway, acme_key).headers["x-steerguard-engine"] != "stub")


def test_a_skill_that_no_engine_holds_yet_is_a_503(gateway: Gateway, completing: StubEngine, acme_key: str) -> None:
    completing.does = refuses(400, "unknown vector", "vllm_xargs.steerguard.blend[0].vector")
    with pytest.raises(openai.InternalServerError) as refusal:
        gateway.openai(acme_key).completions.create(model=MODEL, prompt="a", extra_body={"steer_skill": "pirate"})
    assert refusal.value.status_code == 503
    assert refusal.value.response.headers["retry-after"]
