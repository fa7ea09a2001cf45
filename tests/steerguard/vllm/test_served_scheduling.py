"""Steering through a real server when requests are long, leave early, or ask for more rows than there are."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from tests.engine import MAX_BATCHED_TOKENS, TestEngine
from tests.inference.gateway.conftest import eventually
from tests.steerguard.vllm.over_http import (
    BLENDS,
    DEEP,
    LONG_PROMPT,
    SMALL,
    BlendSpec,
    complete,
    component,
    delete,
    hits,
    is_in_use,
    metric,
    put,
    random_vector,
    reference_tokens,
    state_of,
    token_ids,
)
from tests.steerguard.vllm.reference import Reference

pytestmark = pytest.mark.engine

RUNNING = "vllm:num_requests_running"
NEIGHBOR_TOKENS = 96


def streamed_ids(response: requests.Response) -> Iterator[int]:
    """The tokens of a streamed answer, as they come."""
    assert response.status_code == 200, response.text
    for line in response.iter_lines(chunk_size=1):
        if line.startswith(b"data: {"):
            for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                yield from choice["token_ids"] or ()


def test_a_client_that_goes_away_frees_what_its_answer_held_and_harms_no_neighbor(
    server: TestEngine, reference: Reference
) -> None:
    vector = random_vector(20, 8, scale=1.0)
    blend = [component(vector, 1.0)]
    assert put(server, vector).status_code == 201
    endless: dict[str, Any] = {"stream": True, "return_token_ids": True, "ignore_eos": True, "max_tokens": 1800}
    beside: list[BlendSpec] = [[], BLENDS["one vector"], BLENDS["phases that differ"]]
    expected = [reference_tokens(reference, other, count=NEIGHBOR_TOKENS) for other in beside]

    def leave() -> bool:
        """Whether the neighbors were still there when what the leaving had held was free."""
        leaving = [complete(server, blend, **endless) for _ in range(2)]
        read = [streamed_ids(answer) for answer in leaving]
        assert all(next(ids) >= 0 for ids in read)
        shorter = {**endless, "max_tokens": NEIGHBOR_TOKENS}
        staying = [streamed_ids(complete(server, other or None, **shorter)) for other in beside]
        tokens = [[next(answer)] for answer in staying]
        assert is_in_use(server, vector)
        for answer in leaving:
            answer.close()
        eventually(lambda: not is_in_use(server, vector))
        stayed = metric(server, RUNNING) > 0
        for begun, rest in zip(tokens, staying, strict=True):
            begun += rest
        assert tokens == expected
        return stayed

    assert any(leave() for _ in range(5)), "the neighbors were to stay longer"
    eventually(lambda: metric(server, RUNNING) == 0)
    served = token_ids(complete(server, blend, return_token_ids=True))
    assert served == reference_tokens(reference, blend, vectors=[vector])
    assert delete(server, vector) == 200


def test_an_answer_that_is_not_awaited_is_not_computed_any_further(server: TestEngine) -> None:
    with pytest.raises(requests.ReadTimeout):
        complete(server, BLENDS["one vector"], ignore_eos=True, max_tokens=1800, timeout_s=1.0)
    eventually(lambda: metric(server, RUNNING) == 0)
    steered = metric(server, "steerguard:steered_response_tokens_total")
    complete(server, None)
    assert metric(server, "steerguard:steered_response_tokens_total") == steered


# Two full chunks, then the last prompt token, where the response begins: by itself, or behind others in its chunk.
CHUNKED_TOKENS = [2 * MAX_BATCHED_TOKENS + 1, 2 * MAX_BATCHED_TOKENS + 40]
CHUNKED = ["plain", "all", "prompt", "response", "phases that differ"]


def chunked_blend(name: str) -> BlendSpec:
    if name == "plain":
        return []
    return BLENDS[name] if name in BLENDS else [component(DEEP, 1.5, name)]


@pytest.fixture(scope="module", params=CHUNKED_TOKENS)
def long_prompt(request: pytest.FixtureRequest, reference: Reference) -> list[int]:
    sentence = " On day {} the {} boats went out at {} and came home with {} boxes of herring."
    text = "A diary." + "".join(sentence.format(i, i % 7 + 2, 4 + i % 5, i * i % 83) for i in range(80))
    length: int = request.param
    tokens = reference.tokens(text)[:length]
    assert len(tokens) == length
    return tokens


@pytest.fixture(scope="module")
def expected_of_long_prompt(reference: Reference, long_prompt: list[int]) -> dict[str, list[int]]:
    return {name: reference_tokens(reference, chunked_blend(name), long_prompt) for name in CHUNKED}


def ask_long_prompt(server: TestEngine, long_prompt: list[int], name: str, how: str) -> list[int]:
    # Salted, so that every chunk is computed.
    salt = f"{how} {name} {len(long_prompt)}"
    asked: dict[str, Any] = {"prompt": long_prompt, "cache_salt": salt, "return_token_ids": True}
    return token_ids(complete(server, chunked_blend(name) or None, **asked))


@pytest.mark.parametrize("name", CHUNKED)
def test_a_prompt_longer_than_a_step_is_steered_in_all_its_chunks(
    server: TestEngine, long_prompt: list[int], expected_of_long_prompt: dict[str, list[int]], name: str
) -> None:
    assert ask_long_prompt(server, long_prompt, name, "alone") == expected_of_long_prompt[name]


def test_long_prompts_of_different_blends_share_their_steps(
    server: TestEngine, long_prompt: list[int], expected_of_long_prompt: dict[str, list[int]]
) -> None:
    with ThreadPoolExecutor(len(CHUNKED)) as pool:
        served = pool.map(lambda name: ask_long_prompt(server, long_prompt, name, "together"), CHUNKED)
        assert dict(zip(CHUNKED, served, strict=True)) == expected_of_long_prompt


def test_more_blends_than_the_bank_has_rows_each_get_their_own(server: TestEngine, reference: Reference) -> None:
    before = state_of(server)
    count = before["rows_total"] // 2 + 4
    # Two rows each, and none of them in the bank yet.
    blends = [[component(SMALL, 0.5 + i / 7, "prompt"), component(DEEP, 0.5 + i / 9, "response")] for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        served = list(pool.map(lambda b: token_ids(complete(server, b, max_tokens=4, return_token_ids=True)), blends))
    assert served == [reference_tokens(reference, blend, count=4) for blend in blends]
    after = state_of(server)
    assert after["row_evictions"] > before["row_evictions"]
    assert after["rows_in_use"] <= after["rows_total"]


@pytest.mark.parametrize("first, second", [(30, 31), (31, 30)])
def test_other_content_under_an_old_name_reuses_no_old_kv(
    server: TestEngine, reference: Reference, first: int, second: int
) -> None:
    prompt = f"Brand {first} first. {LONG_PROMPT}"
    answers = []
    for seed in (first, second, first):
        vector = random_vector(seed, 12, scale=3.0, name="brand")
        assert put(server, vector).status_code == 201
        before = hits(server)
        blend = [component(vector, 1.5)]
        answers.append(token_ids(complete(server, blend, prompt=prompt, return_token_ids=True)))
        assert answers[-1] == reference_tokens(reference, blend, prompt, vectors=[vector])
        # The third time the first content is back, and so is its KV.
        assert (hits(server) - before > 0) == (len(answers) == 3)
        assert delete(server, vector) == 200
    assert answers[0] != answers[1]
