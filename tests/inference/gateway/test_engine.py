"""The gateway in front of a real vLLM with the plugin, asked with the unchanged `openai` client."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import requests
from asgiref.sync import async_to_sync

from inference import reconcile, services
from inference.models import Engine
from personas.models import Tenant
from tests.conftest import MakePersona, MakeVector
from tests.engine import TestEngine
from tests.inference.gateway.conftest import Gateway, eventually

pytestmark = pytest.mark.engine

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
# Strong enough to change what a small model says, whatever direction it is.
ALPHA = 4.0
PLAIN: dict[str, Any] = {"messages": QUESTION, "temperature": 0, "max_tokens": 12}


@pytest.fixture
def personas(
    transactional_db: None, engine: TestEngine, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> Iterator[list[str]]:
    """Personas of acme with a vector each, all of them on the engine."""
    names = []
    for seed in range(6):
        vector = make_vector(acme, f"direction-{seed}", seed=seed, layers=(10, 14))
        names.append(make_persona(acme, f"persona-{seed}", vector, alpha=ALPHA).model_name)
    row = services.register_engine(name="local", url=engine.url, api_key=engine.key)
    assert async_to_sync(reconcile.reconcile)(row).status == "ready"
    yield names
    listed = requests.get(f"{engine.url}/v1/steering/vectors", headers=engine.headers, timeout=30).json()["data"]
    for vector in listed:
        requests.delete(f"{engine.url}/v1/steering/vectors/{vector['digest']}", headers=engine.headers, timeout=30)


@pytest.fixture
def client(gateway: Gateway, personas: list[str], acme_key: str) -> openai.OpenAI:
    return gateway.openai(acme_key)


def say(client: openai.OpenAI, model: str, **more: Any) -> str:
    answer = client.chat.completions.create(model=model, **{**PLAIN, **more})
    assert answer.model == model
    return answer.choices[0].message.content or ""


def running_requests(engine: TestEngine) -> int:
    metrics = requests.get(f"{engine.url}/metrics", timeout=30).text
    found = re.search(r"^vllm:num_requests_running\{.*\} ([\d.]+)$", metrics, re.MULTILINE)
    assert found
    return int(float(found[1]))


def test_a_persona_is_steered_and_the_base_model_is_what_it_is_without_a_gateway(
    client: openai.OpenAI, engine: TestEngine, personas: list[str]
) -> None:
    direct = openai.OpenAI(base_url=f"{engine.url}/v1", api_key=engine.key)
    unsteered = say(client, engine.model)
    assert unsteered == say(direct, engine.model)
    assert say(client, personas[0]) != unsteered


def test_personas_asked_at_once_each_answer_as_when_alone(
    client: openai.OpenAI, engine: TestEngine, personas: list[str]
) -> None:
    models = [*personas, engine.model]
    alone = [say(client, model) for model in models]
    assert len(set(alone)) > 1
    with ThreadPoolExecutor(len(models)) as pool:
        assert list(pool.map(lambda model: say(client, model), models)) == alone


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI, personas: list[str]) -> None:
    stream = client.chat.completions.create(
        model=personas[1], **PLAIN, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == say(client, personas[1])
    assert {chunk.model for chunk in chunks} == {personas[1]}
    assert chunks[-1].usage and chunks[-1].usage.completion_tokens > 0


def test_headers_say_what_the_engine_applied(
    gateway: Gateway, acme_key: str, personas: list[str], engine: TestEngine
) -> None:
    client = gateway.http(acme_key)
    state = requests.get(f"{engine.url}/v1/steering", headers=engine.headers, timeout=30).json()
    for stream in (False, True):
        steered = client.post("/v1/chat/completions", json={"model": personas[0], **PLAIN, "stream": stream}).headers
        assert len(steered["x-steerguard-blend"]) == 64
        # A dose is relative to norms that the engine may not have measured yet.
        assert ("x-steerguard-dose" in steered) == bool(state["norms"])
    plain = client.post("/v1/chat/completions", json={"model": engine.model, **PLAIN}).headers
    assert "x-steerguard-blend" not in plain


def test_everything_that_vllm_takes_passes_through(client: openai.OpenAI, personas: list[str]) -> None:
    asked: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2, "seed": 3, "stop": ["."], "temperature": 0.7}
    answer = client.chat.completions.create(model=personas[0], **{**PLAIN, **asked}, extra_body={"top_k": 5})
    assert len(answer.choices) == 2
    assert answer.choices[0].logprobs and answer.choices[0].logprobs.content
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2

    chosen = say(client, personas[0], extra_body={"structured_outputs": {"choice": ["Paris", "Lyon"]}})
    assert chosen in ("Paris", "Lyon")


def test_plain_completions_and_several_prompts(client: openai.OpenAI, personas: list[str]) -> None:
    answer = client.completions.create(model=personas[0], prompt=["Once upon", "The sea"], max_tokens=4)
    assert len(answer.choices) == 2
    assert answer.model == personas[0]


def test_the_article_s_skill_and_alpha_steer(client: openai.OpenAI, engine: TestEngine) -> None:
    skilled = say(client, engine.model, extra_body={"steer_skill": "direction-0", "steer_alpha": ALPHA})
    assert skilled == say(client, "persona-0")
    zero = say(client, engine.model, extra_body={"steer_skill": "direction-0", "steer_alpha": 0})
    assert zero == say(client, engine.model)


def test_what_the_engine_refuses_comes_with_the_field(client: openai.OpenAI, personas: list[str]) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refusal:
            client.chat.completions.create(model=personas[0], messages=QUESTION, max_tokens=99_999, stream=stream)
        assert refusal.value.param == "max_tokens"
        assert refusal.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "pattern": r"\p{L}+"}, {"type": "integer", "multipleOf": 7}, {"type": "nonsense"}],
    ids=["pattern", "multipleOf", "no such type"],
)
def test_a_schema_that_the_engine_cannot_hold_an_answer_to_is_refused_by_field(
    client: openai.OpenAI, engine: TestEngine, schema: dict[str, Any]
) -> None:
    asked: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match=r"(?i)schema") as refusal:
        client.chat.completions.create(model=engine.model, messages=QUESTION, response_format=asked)
    assert refusal.value.param == "response_format"
    # vLLM has begun a streamed answer by the time that it looks: there an event says the same.
    with pytest.raises(openai.APIError, match=r"(?i)schema"):
        list(client.chat.completions.create(model=engine.model, messages=QUESTION, response_format=asked, stream=True))


def test_a_vector_that_is_not_on_the_engine_is_never_an_unsteered_answer(
    client: openai.OpenAI, engine: TestEngine, personas: list[str]
) -> None:
    for vector in requests.get(f"{engine.url}/v1/steering/vectors", headers=engine.headers, timeout=30).json()["data"]:
        requests.delete(f"{engine.url}/v1/steering/vectors/{vector['digest']}", headers=engine.headers, timeout=30)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as refusal:
            client.chat.completions.create(model=personas[0], messages=QUESTION, stream=stream)
        assert refusal.value.status_code == 503
        assert refusal.value.response.headers["retry-after"]


def test_a_client_that_leaves_frees_the_engine(client: openai.OpenAI, engine: TestEngine, personas: list[str]) -> None:
    long: dict[str, Any] = {"messages": QUESTION, "max_tokens": 1800, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(model=personas[0], **long, stream=True) as stream:
        next(iter(stream))
        eventually(lambda: running_requests(engine) == 1)
    eventually(lambda: running_requests(engine) == 0)

    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.0).chat.completions.create(model=personas[0], **long)
    eventually(lambda: running_requests(engine) == 0)


def test_a_list_of_skills_answers_each_prompt_as_when_it_is_asked_alone(
    client: openai.OpenAI, engine: TestEngine, personas: list[str]
) -> None:
    prompts = ["The capital of France is", "The sea is", "Once upon a time"]
    skills, alphas = ["direction-0", None, "direction-1"], [ALPHA, None, ALPHA]
    asked: dict[str, Any] = {"model": engine.model, "temperature": 0, "max_tokens": 8}

    def alone(prompt: str, skill: str | None, alpha: float | None) -> str:
        extra = {"steer_skill": skill, "steer_alpha": alpha}
        return client.completions.create(prompt=prompt, extra_body=extra, **asked).choices[0].text

    expected = [alone(*each) for each in zip(prompts, skills, alphas, strict=True)]
    extra = {"steer_skill": skills, "steer_alpha": alphas}
    together = client.completions.create(prompt=prompts, extra_body=extra, **asked)
    assert [(choice.index, choice.text) for choice in together.choices] == list(enumerate(expected))
    assert together.usage and together.usage.completion_tokens > 8

    texts = ["", "", ""]
    for chunk in client.completions.create(prompt=prompts, extra_body=extra, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_a_skill_that_no_persona_is_made_of_works(
    client: openai.OpenAI, engine: TestEngine, personas: list[str], acme: Tenant, make_vector: MakeVector
) -> None:
    make_vector(acme, "pirate", seed=99, layers=(10, 14))
    assert async_to_sync(reconcile.reconcile)(Engine.objects.get()).status == "ready"
    steered = say(client, engine.model, extra_body={"steer_skill": "pirate", "steer_alpha": ALPHA})
    assert steered != say(client, engine.model)


def test_responses_are_steered_as_chats_are(
    gateway: Gateway, acme_key: str, client: openai.OpenAI, engine: TestEngine, personas: list[str]
) -> None:
    def respond(model: str) -> str:
        question = QUESTION[0]["content"]
        answer = client.responses.create(model=model, input=question, temperature=0, max_output_tokens=12)
        assert answer.model == model
        return answer.output_text

    assert respond(personas[0]) == say(client, personas[0])
    assert respond(engine.model) == say(client, engine.model)
    events: list[Any] = list(
        client.responses.create(
            model=personas[0], input=QUESTION[0]["content"], temperature=0, max_output_tokens=12, stream=True
        )
    )
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == respond(
        personas[0]
    )
    assert events[-1].response.model == personas[0]
    short = {"model": personas[0], "input": "Hi", "max_output_tokens": 4}
    answer = gateway.http(acme_key).post("/v1/responses", json=short)
    assert len(answer.headers["x-steerguard-blend"]) == 64


def test_embeddings_of_a_model_that_makes_none_are_unsupported(client: openai.OpenAI, engine: TestEngine) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model=engine.model, input="Hi")
    assert refusal.value.code == "unsupported"
