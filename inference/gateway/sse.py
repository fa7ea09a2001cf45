"""The engine's event stream, cut into whole events and renamed without being parsed.

vLLM writes every chunk with the keys `id`, `object`, `created`, `model` first and in that order
(`entrypoints/openai/chat_completion/protocol.py::ChatCompletionStreamResponse`), and the values of all four are the
same throughout one stream. So the first chunk teaches the bytes every later one starts with, and renaming a chunk is
swapping that prefix: generated text comes after it and is never looked at, whatever it contains. An event that starts
otherwise is parsed, so nothing rests on vLLM's key order but speed.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from inference.gateway.errors import EngineFailed, GatewayError

EVENT_END = b"\n\n"
DONE_EVENT = b"data: [DONE]"
KEEP_ALIVE = b": keep-alive\n\n"

# Longest event taken from an engine. Logprobs over a large vocabulary stay well under it.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_PREFIX = b"data: "
# In JSON's text every quote has a backslash before it, so this is a key and nothing that was generated.
_USAGE = b'"usage":{'
# Plain strings only (no escapes) in front of the model: anything fancier takes the parsed path.
_HEAD = re.compile(rb'\{"id":"[^"\\]*","object":"[^"\\]*","created":\d+,"model":(?P<model>"(?:[^"\\]|\\.)*")')


class EventSplitter:
    """Turns byte chunks that end anywhere, inside an event or a UTF-8 character, into whole events.

    An event is the bytes up to an empty line, without it. JSON escapes newlines and no byte of a longer UTF-8
    character equals one, so bytes are cut rightly without being decoded.
    """

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes) -> bytes:
        """The events that `chunk` completes, as they came. Raises EngineFailed when one grows past MAX_EVENT_BYTES."""
        data = self._rest + chunk if self._rest else chunk
        if data.endswith(EVENT_END):
            self._rest = b""
            return data
        last = data.rfind(EVENT_END)
        end = last + len(EVENT_END) if last >= 0 else 0
        self._rest = data[end:]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineFailed(f"The engine sent an event of more than {MAX_EVENT_BYTES} bytes.")
        return data[:end]

    def feed(self, chunk: bytes) -> list[bytes]:
        """The same, one by one and without the empty lines."""
        return split_events(self.take(chunk))


def split_events(block: bytes) -> list[bytes]:
    """The events in a `block` of whole ones."""
    events = block.split(EVENT_END)
    events.pop()
    return events


class EventRewriter(ABC):
    """Rewrites one answer, streamed or whole, for the client. `usage` is what the engine reported of it."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.finished = False
        self.failure: EngineFailed | None = None
        self.events = 0  # written so far

    def rewrite_block(self, block: bytes) -> bytes:
        """The bytes to send for a block of whole events, up to the first that reports or is an error: `failure` holds
        it then."""
        rewritten: list[bytes] = []
        try:
            for event in split_events(block):
                rewritten.append(self._rewrite(event))
        except EngineFailed as error:
            self.failure = error
        self.events += len(rewritten)
        return b"".join(rewritten)

    @abstractmethod
    def rewrite_whole(self, body: bytes) -> bytes:
        """The bytes to send for an answer that is not streamed. Raises EngineFailed when it is none."""

    @abstractmethod
    def ending(self, failure: GatewayError | None) -> bytes:
        """What a stream ends with that the engine hasn't ended: an error event tells why."""

    @abstractmethod
    def _rewrite(self, event: bytes) -> bytes:
        """The bytes to send for one event. Raises EngineFailed."""


class StreamRewriter(EventRewriter):
    """Rewrites one stream's events: each chunk under the model name that was asked for, errors in our shape.

    The engine is always asked for the usage; the chunk that holds it goes on to the client only with `send_usage`.
    """

    def __init__(self, model: str, *, send_usage: bool) -> None:
        super().__init__()
        self._model = model
        self._send_usage = send_usage
        self._engine_head: bytes | None = None
        self._client_head = b""

    def rewrite_block(self, block: bytes) -> bytes:
        """All at once where they are chunks of text: what follows an empty line is the beginning of an event."""
        head = self._engine_head
        if head is not None and block.startswith(head) and _USAGE not in block:
            between = EVENT_END + head
            many = block.count(EVENT_END)
            if many == 1:
                self.events += 1
                return self._client_head + block[len(head) :]
            if block.count(between) == many - 1:
                self.events += many
                return self._client_head + block[len(head) :].replace(between, EVENT_END + self._client_head)
        return super().rewrite_block(block)

    def rewrite_whole(self, body: bytes) -> bytes:
        answer = parse_answer(body)
        self.usage = usage_of(answer)
        return rename_answer(body, answer, self._model)

    def ending(self, failure: GatewayError | None) -> bytes:
        return b"" if failure is None else _PREFIX + failure.body() + EVENT_END + DONE_EVENT + EVENT_END

    def _rewrite(self, event: bytes) -> bytes:
        if self._engine_head is not None and event.startswith(self._engine_head):
            if _USAGE in event:
                return self._rewrite_parsed(event)
            return self._client_head + event[len(self._engine_head) :] + EVENT_END
        if event == DONE_EVENT:
            self.finished = True
            return event + EVENT_END
        if not event or event.startswith(b":"):
            return b""
        if self._engine_head is None and (head := _HEAD.match(event, len(_PREFIX))):
            self._learn(event, head)
            return self._rewrite(event)
        return self._rewrite_parsed(event)

    def _learn(self, event: bytes, head: re.Match[bytes]) -> None:
        self._engine_head = event[: head.end()]
        self._client_head = event[: head.start("model")] + _quote(self._model)

    def _rewrite_parsed(self, event: bytes) -> bytes:
        chunk = parse_event(event)
        if "error" in chunk:
            raise EngineFailed(engine_message(chunk) or "The engine reported an error.")
        if isinstance(chunk.get("usage"), dict):
            self.usage = chunk["usage"]
            if not chunk.get("choices") and not self._send_usage:
                return b""
        return _PREFIX + dump({**chunk, "model": self._model}) + EVENT_END


class ResponseRewriter(EventRewriter):
    """The same for a stream of the Responses API, whose first and last events hold the whole response.

    Those are parsed, few as they are; the ones in between name no model and pass as they are. There is no `[DONE]`.
    """

    def __init__(self, model: str, *, instructions: Any) -> None:
        super().__init__()
        self._model = model
        self._instructions = instructions

    def rewrite_whole(self, body: bytes) -> bytes:
        response = parse_answer(body)
        self.usage = usage_of(response)
        return dump(self._rename(response))

    def ending(self, failure: GatewayError | None) -> bytes:
        if failure is None:
            return b""
        # OpenAI's event has the parts beside the type; its Python client raises for what stands under `error`.
        event = {**failure.as_dict(), "type": "error", "sequence_number": self.events, "error": failure.as_dict()}
        return b"event: error\n" + _PREFIX + dump(event) + EVENT_END

    def _rewrite(self, event: bytes) -> bytes:
        if not event or event.startswith(b":"):
            return b""
        name, newline, data = event.partition(b"\n")
        if not newline or not name.startswith(b"event: "):
            raise EngineFailed(engine_message(parse_event(event)) or "The engine sent an event without a name.")
        kind = name.removeprefix(b"event: ")
        if kind == b"error":
            raise EngineFailed(engine_message(parse_event(data)) or "The engine reported an error.")
        if kind not in _RESPONSE_EVENTS:
            return event + EVENT_END
        chunk = parse_event(data)
        response = chunk.get("response")
        if not isinstance(response, dict):
            raise EngineFailed("The engine sent an event without its response.")
        if kind in _LAST_RESPONSE_EVENTS:
            self.finished = True
            self.usage = usage_of(response)
        return name + b"\n" + _PREFIX + dump({**chunk, "response": self._rename(response)}) + EVENT_END

    def _rename(self, response: dict[str, Any]) -> dict[str, Any]:
        """As the client asked: under its model name, and with its own instructions only."""
        return {**response, "model": self._model, "instructions": self._instructions}


_LAST_RESPONSE_EVENTS = (b"response.completed", b"response.incomplete", b"response.failed")
_RESPONSE_EVENTS = (b"response.created", b"response.queued", b"response.in_progress", *_LAST_RESPONSE_EVENTS)


def usage_of(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """The usage that an answer reports, by the names that chat completions have for it."""
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return None
    if "input_tokens" in usage:
        return {**usage, "prompt_tokens": usage["input_tokens"], "completion_tokens": usage.get("output_tokens", 0)}
    return usage


def parse_event(event: bytes) -> dict[str, Any]:
    """The JSON object of a data event. Raises EngineFailed when it holds none."""
    try:
        if event.startswith(_PREFIX) and isinstance(chunk := json.loads(event[len(_PREFIX) :]), dict):
            return chunk
    except ValueError:
        pass
    raise EngineFailed("The engine sent an event that is no JSON object.")


def parse_answer(body: bytes) -> dict[str, Any]:
    """A whole answer. Raises EngineFailed when it is none."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EngineFailed("The engine's answer is no JSON object.")
    if answer.get("error") is not None:
        raise EngineFailed(engine_message(answer) or "The engine reported an error.")
    return answer


def rename_answer(body: bytes, answer: Mapping[str, Any], model: str) -> bytes:
    """A whole answer, which is `answer` when parsed, under its new model name."""
    if head := _HEAD.match(body):
        return body[: head.start("model")] + _quote(model) + body[head.end("model") :]
    return dump({**answer, "model": model})


@lru_cache(maxsize=4096)
def _quote(model: str) -> bytes:
    return json.dumps(model).encode()


def engine_message(answer: dict[str, Any]) -> str | None:
    """What an error answer says, in any of the shapes vLLM has for one."""
    error = answer.get("error", answer.get("detail"))
    if isinstance(error, dict):
        error = error.get("message")
    return error if isinstance(error, str) else None


def dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
