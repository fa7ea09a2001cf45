"""One answer out of several engines' answers, where a request's prompts are steered by different skills.

vLLM numbers the choices of a request prompt by prompt: answer `j` of prompt `i` is choice `i * n + j`. Each part knows
which of the client's prompts are its own, and its choices are renumbered by that. All chunks are parsed here, which a
stream of one engine does without.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from inference.gateway.compose import Part
from inference.gateway.errors import EngineFailed, GatewayError
from inference.gateway.fleet import STEERING_HEADERS, Upstream
from inference.gateway.sse import DONE_EVENT, EVENT_END, dump, engine_message, parse_answer, parse_event, usage_of

# What stands in a list of headers for a part that has none: nothing was added to it.
NONE = "none"


class Merger:
    """Puts the parts of one request together. `n` is how many answers each prompt gets."""

    def __init__(self, model: str, parts: Sequence[Part], *, n: int, request_id: str, send_usage: bool) -> None:
        self.usage: dict[str, Any] | None = None  # the sum of what the parts have reported
        self.failure: EngineFailed | None = None
        self.events = 0  # written so far
        self._common = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._parts = parts
        self._n = n
        self._send_usage = send_usage
        self._usages: dict[int, dict[str, Any]] = {}
        self._unfinished = set(range(len(parts)))

    @property
    def finished(self) -> bool:
        return not self._unfinished

    def merge_whole(self, bodies: Sequence[bytes]) -> bytes:
        """The whole answer out of the parts' answers, in their order. Raises EngineFailed when one is none."""
        answers = [parse_answer(body) for body in bodies]
        choices: list[dict[str, Any]] = []
        for number, answer in enumerate(answers):
            self._note_usage(number, answer)
            choices += (self._renumber(number, choice) for choice in answer.get("choices") or ())
        choices.sort(key=lambda choice: int(choice["index"]))
        return dump({**answers[0], **self._common, "choices": choices, "usage": self.usage})

    def rewrite(self, number: int, events: Iterable[bytes]) -> bytes:
        """The bytes to send for `events` of the part `number`; `failure` holds what one of them reported."""
        rewritten: list[bytes] = []
        try:
            for event in events:
                rewritten.append(self._rewrite(number, event))
        except EngineFailed as error:
            self.failure = error
        self.events += len(rewritten)
        return b"".join(rewritten)

    def ending(self, failure: GatewayError | None) -> bytes:
        """The end of the stream: usage where it was asked for, or what went wrong."""
        last = b""
        if failure is not None:
            last = b"data: " + failure.body() + EVENT_END
        elif self._send_usage:
            last = b"data: " + dump({**self._common, "choices": [], "usage": self.usage}) + EVENT_END
        return last + DONE_EVENT + EVENT_END

    def _rewrite(self, number: int, event: bytes) -> bytes:
        if event == DONE_EVENT:
            self._unfinished.discard(number)
            return b""
        if not event or event.startswith(b":"):
            return b""
        chunk = parse_event(event)
        if "error" in chunk:
            raise EngineFailed(engine_message(chunk) or "The engine reported an error.")
        if not chunk.get("choices"):
            self._note_usage(number, chunk)
            return b""
        choices = [self._renumber(number, choice) for choice in chunk["choices"]]
        return b"data: " + dump({**chunk, **self._common, "choices": choices}) + EVENT_END

    def _note_usage(self, number: int, answer: Mapping[str, Any]) -> None:
        if usage := usage_of(answer):
            self._usages[number] = usage
            self.usage = sum_usages(self._usages.values())

    def _renumber(self, number: int, choice: Mapping[str, Any]) -> dict[str, Any]:
        prompts = self._parts[number].prompts
        index = choice.get("index")
        if not isinstance(index, int) or not 0 <= index < len(prompts) * self._n:
            raise EngineFailed("The engine numbered its answers in an unknown way.")
        prompt, answer = divmod(index, self._n)
        return {**choice, "index": prompts[prompt] * self._n + answer}


async def interleave(upstreams: Sequence[Upstream]) -> AsyncGenerator[tuple[int, bytes], None]:
    """The bytes of all answers as they come, each with the number of its part. Raises what reading does.

    Nothing more is read from an engine while what it sent last waits to be taken.
    """
    waiting: asyncio.Queue[tuple[int, bytes | Exception | None]] = asyncio.Queue(maxsize=1)

    async def read(number: int, upstream: Upstream) -> None:
        try:
            while data := await upstream.answer.read_any():
                await waiting.put((number, data))
        except Exception as error:
            await waiting.put((number, error))
        else:
            await waiting.put((number, None))

    reading = [asyncio.create_task(read(*numbered), name="gateway-read-part") for numbered in enumerate(upstreams)]
    try:
        ended = 0
        while ended < len(reading):
            number, data = await waiting.get()
            if isinstance(data, Exception):
                raise data
            if data is None:
                ended += 1
            else:
                yield number, data
    finally:
        for task in reading:
            task.cancel()


def sum_usages(usages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts added up, at any depth; anything else is the first one's."""
    total: dict[str, Any] = {}
    for usage in usages:
        for name, value in usage.items():
            if isinstance(value, Mapping):
                total[name] = sum_usages([total.get(name) or {}, value])
            elif isinstance(value, int) and not isinstance(value, bool):
                total[name] = (total.get(name) or 0) + value
            else:
                total.setdefault(name, value)
    return total


def merge_headers(upstreams: Sequence[Upstream]) -> dict[str, str]:
    """What the parts' answers say was applied to them, in lists that are in the order of the parts."""
    merged = {}
    for name in STEERING_HEADERS:
        values = [upstream.steering_headers.get(name, NONE) for upstream in upstreams]
        if set(values) != {NONE}:
            merged[name] = ", ".join(values)
    return merged
