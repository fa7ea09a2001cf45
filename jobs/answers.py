"""A streamed answer put together again: the chunks of OpenAI's two completion APIs, into what they have for a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What comes in pieces; every other field of a delta is whole when it comes.
_GROWING = ("content", "reasoning_content", "reasoning", "refusal", "arguments")


class Assembly:
    """`add` each chunk, then ask for the `whole`. Text of one choice only ever grows."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: Any = None

    def add(self, chunk: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
        """Yields the choices that have more text, and the text."""
        for name, value in chunk.items():
            if name not in ("choices", "usage"):
                self._head.setdefault(name, value)
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            known = self._choices.setdefault(index, {"index": index})
            for name, value in choice.items():
                if name == "delta":
                    _grow(known.setdefault("message", {"role": "assistant", "content": None}), value or {})
                elif name == "text":
                    known["text"] = known.get("text", "") + (value or "")
                elif name == "logprobs":
                    known["logprobs"] = _join_logprobs(known.get("logprobs"), value)
                elif value is not None or name not in known:
                    known[name] = value
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            if isinstance(text, str) and text:
                yield index, text

    def texts(self) -> Iterator[tuple[int, str]]:
        """All the text so far, by choice."""
        for index, choice in sorted(self._choices.items()):
            text = choice.get("text") or (choice.get("message") or {}).get("content")
            if isinstance(text, str) and text:
                yield index, text

    def whole(self, model: str) -> dict[str, Any]:
        """The answer as if it hadn't been streamed, under the name that was asked for."""
        kind = str(self._head.get("object", "")).removesuffix(".chunk")
        choices = [choice for _, choice in sorted(self._choices.items())]
        return {**self._head, "object": kind, "model": model, "choices": choices, "usage": self._usage}


def whole_texts(answer: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """The texts of an answer that came whole, by choice."""
    for choice in answer.get("choices") or ():
        text = choice.get("text") or (choice.get("message") or {}).get("content")
        if isinstance(text, str) and text:
            yield choice.get("index", 0), text


def _grow(known: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for call in value or ():
                _grow_call(known.setdefault("tool_calls", []), call)
        elif name in _GROWING and isinstance(value, str):
            known[name] = (known.get(name) or "") + value
        elif value is not None:
            known[name] = value


def _grow_call(calls: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    """The index only says which one a piece belongs to; a whole answer has none."""
    index = delta.get("index", 0)
    while len(calls) <= index < 128:
        calls.append({"function": {}})
    for name, value in delta.items():
        if name == "function":
            _grow(calls[index]["function"], value or {})
        elif name != "index" and value is not None:
            calls[index][name] = value


def _join_logprobs(known: dict[str, Any] | None, more: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Both APIs have an object of lists with an entry for each token."""
    if more is None or known is None:
        return dict(more) if more is not None else known
    lists = {name: [*(known.get(name) or []), *value] for name, value in more.items() if isinstance(value, list)}
    return {**known, **lists}
