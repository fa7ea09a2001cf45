from threading import Event
from typing import Any

import pytest

from steerguard.extraction.engine import Engine, EngineError
from steerguard.extraction.generate import generate_pairs
from steerguard.extraction.pairs import Pair
from steerguard.extraction.progress import Stopped
from tests.steerguard.stub_engine import StubEngine

SYSTEMS: dict[str, Any] = {"positive_system": "Be sunny.", "negative_system": "Be gloomy."}
QUESTIONS = [f"Question {number}?" for number in range(6)]


def rule(messages, _blend):
    system, question = (message["content"] for message in messages)
    mood = "sunny" if system == "Be sunny." else "gloomy"
    return f"{question} A {mood} answer."


def test_each_question_is_answered_under_both_prompts():
    seen: list[int] = []
    with StubEngine(rule, key="secret") as stub:
        engine = Engine(stub.url, "secret", concurrency=3)
        generated = generate_pairs(engine, QUESTIONS, **SYSTEMS, max_tokens=9, seed=5, on_progress=seen.append)
    assert generated.unusable == ()
    assert generated.pairs == tuple(
        Pair(question, f"{question} A sunny answer.", f"{question} A gloomy answer.") for question in QUESTIONS
    )
    assert sum(seen) == 2 * len(QUESTIONS)
    assert {body["max_tokens"] for body in stub.chats()} == {9}
    assert sorted({body["seed"] for body in stub.chats()}) == [5, 6, 7, 8, 9, 10]


def test_questions_whose_answers_do_not_differ_are_told():
    answers = {"Question 0?": "", "Question 1?": "The same."}
    with StubEngine(lambda messages, blend: answers.get(messages[1]["content"], rule(messages, blend))) as stub:
        generated = generate_pairs(Engine(stub.url), QUESTIONS, **SYSTEMS)
    assert generated.unusable == ("Question 0?", "Question 1?")
    assert [pair.prompt for pair in generated.pairs] == QUESTIONS[2:]


def test_an_engine_that_is_busy_for_a_moment_is_asked_again():
    with StubEngine(rule) as stub:
        stub.failures["/v1/chat/completions"] = 2
        assert len(generate_pairs(Engine(stub.url), QUESTIONS[:2], **SYSTEMS).pairs) == 2
        stub.failures["/v1/chat/completions"] = 100
        with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:\d+: HTTP 503: busy"):
            generate_pairs(Engine(stub.url, retries=0), QUESTIONS[:2], **SYSTEMS)


def test_a_refusal_says_what_the_engine_said():
    with StubEngine(rule, key="secret") as stub, pytest.raises(EngineError, match="HTTP 401: wrong key"):
        generate_pairs(Engine(stub.url, "guess"), QUESTIONS, **SYSTEMS)


def test_an_engine_that_is_not_there_is_told():
    with StubEngine(rule) as stub:
        url = stub.url
    with pytest.raises(EngineError, match="can't be reached"):
        generate_pairs(Engine(url, retries=0), QUESTIONS, **SYSTEMS)


def test_a_stopped_run_asks_only_for_the_rest(tmp_path):
    with StubEngine(rule) as stub:
        stop = Event()
        stub.on_answer = lambda count: stop.set() if count >= 4 else None
        with pytest.raises(Stopped):
            generate_pairs(
                Engine(stub.url, concurrency=1), QUESTIONS, **SYSTEMS, work=tmp_path, should_stop=stop.is_set
            )
    kept = (tmp_path / "answers.jsonl").read_bytes().count(b"\n")
    assert kept >= 3  # the fourth may have been broken off
    with StubEngine(rule) as stub:
        generated = generate_pairs(Engine(stub.url), QUESTIONS, **SYSTEMS, work=tmp_path)
        assert len(stub.chats()) == 2 * len(QUESTIONS) - kept
        assert len(generated.pairs) == len(QUESTIONS)
        generate_pairs(Engine(stub.url), QUESTIONS, **SYSTEMS, work=tmp_path, seed=100)
        assert len(stub.chats()) == 4 * len(QUESTIONS) - kept  # another seed is another question


@pytest.mark.parametrize(
    ("systems", "reason"),
    [
        ({"positive_system": " ", "negative_system": "b"}, "positive_system: expected text"),
        ({"positive_system": "a", "negative_system": "a"}, "negative_system: expected a prompt unlike positive_system"),
    ],
)
def test_system_prompts_that_say_nothing_are_refused(systems, reason):
    with pytest.raises(ValueError, match=reason):
        generate_pairs(Engine("http://127.0.0.1:9"), QUESTIONS, **systems)
