"""Renaming a stream without parsing it: right for any text and for bytes cut anywhere."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.errors import EngineFailed
from inference.gateway.sse import EventSplitter, ResponseRewriter, StreamRewriter
from tests.inference.gateway.stub_engine import DONE, HEAD, MODEL, chunk, usage_chunk

# What a model may be made to write in order to confuse a byte replacer.
TRICKS = [
    f'"model":"{MODEL}"',
    f'data: {HEAD},"choices":[],"usage":{{}}}}',
    f"\n\ndata: {HEAD}",
    "data: [DONE]\n\n",
    '{"error":{"message":"no"}}',
    "\r\n\r\n: keep-alive\u0085\u2028\u2029",
    "naïve café 漢字 🏴‍☠️",
]

texts = st.lists(st.one_of(st.text(max_size=20), st.sampled_from(TRICKS)), max_size=8)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(position % (len(data) + 1) for position in at)})
    return [data[start:end] for start, end in pairwise(edges)]


def relay(parts: list[bytes], model: str = "acme/support", *, send_usage: bool = False) -> tuple[bytes, StreamRewriter]:
    splitter, rewriter = EventSplitter(), StreamRewriter(model, send_usage=send_usage)
    return b"".join(rewriter.rewrite_block(splitter.take(part)) for part in parts), rewriter


def block(*events: bytes) -> bytes:
    return b"".join(event + b"\n\n" for event in events)


def parsed(stream: bytes) -> list[Any]:
    return [
        json.loads(event.removeprefix(b"data: ")) for event in stream.split(b"\n\n") if event.startswith(b"data: {")
    ]


@given(texts, st.lists(st.integers(min_value=0), max_size=30))
def test_only_the_models_name_changes_whatever_the_text_and_wherever_the_bytes_are_cut(
    said: list[str], at: list[int]
) -> None:
    stream = b"".join(map(chunk, said)) + usage_chunk() + DONE
    relayed, rewriter = relay(cut(stream, at), send_usage=True)

    assert parsed(relayed) == [{**event, "model": "acme/support"} for event in parsed(stream)]
    assert relayed.endswith(DONE)
    assert rewriter.finished and rewriter.failure is None


@given(texts)
def test_the_plain_and_the_quick_way_agree(said: list[str]) -> None:
    """An engine that orders its keys otherwise only costs time."""
    plain = b"".join(
        b"data: " + json.dumps(dict(reversed(event.items()))).encode() + b"\n\n"
        for event in parsed(b"".join(map(chunk, said)))
    )
    assert parsed(relay([plain])[0]) == parsed(relay([b"".join(map(chunk, said))])[0])


def test_ordinary_chunks_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = [chunk("Hello"), *map(chunk, TRICKS), DONE]
    monkeypatch.setattr("inference.gateway.sse.json.loads", lambda text: pytest.fail("parsed"))
    relayed, _ = relay(stream)
    assert relayed.count(b'"model":"acme/support"') == len(stream) - 1


def test_usage_is_noted_and_withheld_from_who_did_not_ask() -> None:
    relayed, rewriter = relay([chunk("Hi"), usage_chunk(), DONE])
    assert rewriter.usage == {"prompt_tokens": 32, "total_tokens": 36, "completion_tokens": 4}
    assert b"usage" not in relayed


@pytest.mark.parametrize("before", [[], [chunk("So")]])
@pytest.mark.parametrize("text", ["Hi", ""])
@pytest.mark.parametrize("separators", [(",", ":"), None])
def test_a_usage_beside_text_is_noted_and_passed_on_with_the_text(
    before: list[bytes], text: str, separators: tuple[str, str] | None
) -> None:
    both = json.loads(chunk(text, "stop").removeprefix(b"data: ")) | {"usage": {"completion_tokens": 1}}
    relayed, rewriter = relay([*before, b"data: " + json.dumps(both, separators=separators).encode() + b"\n\n", DONE])
    assert parsed(relayed)[-1]["choices"][0]["delta"]["content"] == text
    assert rewriter.usage == {"completion_tokens": 1}


def test_a_usage_is_passed_on_as_it_is_zeros_included() -> None:
    usage = {"prompt_tokens": 0, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
    last = json.loads(usage_chunk().removeprefix(b"data: ")) | {"usage": usage}
    relayed, rewriter = relay([chunk("Hi"), b"data: " + json.dumps(last).encode() + b"\n\n", DONE], send_usage=True)
    assert (rewriter.usage, parsed(relayed)[-1]["usage"]) == (usage, usage)


def test_a_name_that_needs_escaping_is_escaped() -> None:
    relayed, _ = relay([chunk("Hi"), DONE], model='a"b\\c')
    assert parsed(relayed)[0]["model"] == 'a"b\\c'


def test_what_was_said_before_an_error_is_passed_on_and_nothing_after_it() -> None:
    error = b'data: {"error":{"message":"out of memory","type":"InternalServerError","code":500}}\n\n'
    relayed, rewriter = relay([chunk("Hi") + error + chunk("lost")])
    assert [event["choices"][0]["delta"]["content"] for event in parsed(relayed)] == ["Hi"]
    assert rewriter.failure and rewriter.failure.message == "out of memory"


@pytest.mark.parametrize("event", [b"data: [1]", b"data: nonsense", b"nonsense", b"data: {"])
def test_what_is_no_event_is_a_failure_and_not_passed_on(event: bytes) -> None:
    relayed, rewriter = relay([event + b"\n\n"])
    assert relayed == b""
    assert rewriter.failure is not None


def test_an_event_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.gateway.sse.MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    splitter.feed(b"x" * 60)
    with pytest.raises(EngineFailed):
        splitter.feed(b"x" * 60)


@given(st.text(), st.booleans())
def test_a_whole_answer_changes_its_name_only(text: str, compact: bool) -> None:
    answer = {"id": "1", "object": "o", "created": 1, "model": MODEL, "choices": [{"text": text}, {"model": MODEL}]}
    body = json.dumps(answer, separators=(",", ":") if compact else None).encode()
    renamed = StreamRewriter("acme/support", send_usage=True).rewrite_whole(body)
    assert json.loads(renamed) == {**answer, "model": "acme/support"}


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"\xff"])
def test_an_answer_that_is_none_is_the_engines_failure(body: bytes) -> None:
    with pytest.raises(EngineFailed):
        StreamRewriter("acme/support", send_usage=True).rewrite_whole(body)


class TestResponses:
    response = {"id": "resp_1", "model": MODEL, "instructions": "Be kind.\n\nMine.", "output": []}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}

    def rewriter(self) -> ResponseRewriter:
        return ResponseRewriter("acme/support", instructions="Mine.")

    def event(self, kind: str, **data: object) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}".encode()

    def test_are_renamed_where_they_hold_the_response_and_say_what_they_used(self) -> None:
        rewriter = self.rewriter()
        delta = self.event("response.output_text.delta", delta=f'"model":"{MODEL}"')
        out = rewriter.rewrite_block(
            block(
                self.event("response.created", response=self.response),
                delta,
                self.event("response.completed", response={**self.response, "usage": self.usage}),
            )
        )
        first, second, last, _ = out.split(b"\n\n")
        for event in (first, last):
            response = json.loads(event.split(b"data: ")[1])["response"]
            assert (response["model"], response["instructions"]) == ("acme/support", "Mine.")
        assert second == delta
        assert rewriter.finished
        assert rewriter.usage and (rewriter.usage["prompt_tokens"], rewriter.usage["completion_tokens"]) == (3, 2)

    def test_are_not_finished_without_their_last_event(self) -> None:
        rewriter = self.rewriter()
        rewriter.rewrite_block(block(self.event("response.created", response=self.response)))
        assert not rewriter.finished
        name, data = rewriter.ending(EngineFailed("It broke off.")).removesuffix(b"\n\n").split(b"\n")
        error = json.loads(data.removeprefix(b"data: "))
        assert name == b"event: error"
        assert (error["type"], error["message"], error["sequence_number"]) == ("error", "It broke off.", 1)

    @pytest.mark.parametrize("event", [b"data: {}", b"event: response.created\ndata: {}", b"event: error\ndata: {}"])
    def test_that_are_none_are_the_engines_failure(self, event: bytes) -> None:
        rewriter = self.rewriter()
        rewriter.rewrite_block(block(event))
        assert rewriter.failure is not None
