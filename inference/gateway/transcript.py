"""What was asked and answered, for the log of a tenant that has switched that on (`logs_prompts`).

Kept as it passes, at most so much of it, and read only when the log line is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_LOGGED_CHARS = 4000
# Of the answer as it was sent: every token of a stream comes with a few hundred bytes around it.
MAX_HEARD_BYTES = 256 * 1024

_PROMPT_FIELDS = ("instructions", "messages", "prompt", "input")


class Transcript:
    """Of one request, as the client wrote it and got it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        asked = {name: body[name] for name in _PROMPT_FIELDS if body.get(name) is not None}
        self._prompt = json.dumps(asked, ensure_ascii=False)[:MAX_LOGGED_CHARS]
        self._heard = bytearray()

    def hear(self, data: bytes) -> None:
        """A part of the answer: whole events of a stream, or all of it."""
        if len(self._heard) < MAX_HEARD_BYTES:
            self._heard += data

    def as_log(self) -> dict[str, str]:
        return {"prompt": self._prompt, "answer": "".join(self._texts())[:MAX_LOGGED_CHARS]}

    def _texts(self) -> Iterator[str]:
        if not self._heard.startswith((b"data:", b"event:", b":")):
            yield from _texts_of(_parse(bytes(self._heard)))
            return
        for line in self._heard.split(b"\n"):
            if line.startswith(b"data: "):
                yield from _texts_of(_parse(bytes(line[6:])))


def _texts_of(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer.get("type") == "response.output_text.delta":
        yield str(answer.get("delta", ""))
    for choice in answer.get("choices") or ():
        said = choice.get("message") or choice.get("delta") or choice
        yield said.get("content") or said.get("text") or ""
        if calls := said.get("tool_calls"):
            yield json.dumps(calls, ensure_ascii=False)
    for item in answer.get("output") or ():
        for part in item.get("content") or ():
            yield part.get("text") or ""


def _parse(data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
