"""What a playground may ask over its websocket, checked. Knows no database and no engine.

Everything is bounded here, because whoever holds a session can send anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from personas.characters import STORABLE_RULE, UNSTORABLE
from personas.playground import MAX_MESSAGE_CHARS, MAX_STRENGTH, MAX_TOKENS

Column = Literal["persona", "base"]
COLUMNS: tuple[Column, ...] = ("persona", "base")
ROLES = ("system", "user", "assistant")

# A conversation of the longest messages in the widest script, with room for JSON's escapes.
MAX_FRAME_CHARS = 256 * 1024
MAX_MESSAGES = 32
MAX_ID_CHARS = 64
MAX_MODEL_CHARS = 140  # two slugs, a slash and a revision
MAX_SEED = 2**31 - 1


class BadMessage(Exception):
    """A message that is not understood. Says which field, and what belongs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question for the columns of a playground. `strength` multiplies the persona's own alphas."""

    id: str
    persona: str
    messages: tuple[dict[str, str], ...]
    strength: float
    columns: tuple[Column, ...]
    max_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Give up the question of that id, if it still runs."""

    id: str


def parse_message(text: str | None) -> Ask | Stop:
    """What a frame says; None is a binary one. Raises BadMessage."""
    if text is None:
        raise BadMessage("Expected text, found binary data.")
    if len(text) > MAX_FRAME_CHARS:
        raise BadMessage(f"The message is longer than {MAX_FRAME_CHARS} characters.")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise BadMessage("The message is not valid JSON.") from None
    if not isinstance(data, dict):
        raise BadMessage("The message must be a JSON object.")
    if data.get("type") == "ask":
        return _parse_ask(data)
    if data.get("type") == "stop":
        return Stop(_id(data))
    raise BadMessage("'type' must be 'ask' or 'stop'.")


def _parse_ask(data: dict[str, Any]) -> Ask:
    return Ask(
        id=_id(data),
        # Any text: what no persona can be called is as unknown as a name that none has.
        persona=_text(data, "persona", MAX_MODEL_CHARS),
        messages=_messages(data.get("messages")),
        strength=_strength(data.get("strength", 1.0)),
        columns=_columns(data.get("columns", list(COLUMNS))),
        max_tokens=_integer(data, "max_tokens", 1, MAX_TOKENS),
        seed=_integer(data, "seed", 0, MAX_SEED),
    )


def _text(data: dict[str, Any], name: str, max_chars: int) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        raise BadMessage(f"'{name}' must be text of 1 to {max_chars} characters.")
    return value


def _id(data: dict[str, Any]) -> str:
    value = _text(data, "id", MAX_ID_CHARS)
    _check_storable("id", value)
    return value


def _check_storable(name: str, text: str) -> None:
    if UNSTORABLE.search(text):
        raise BadMessage(f"'{name}' must be text with {STORABLE_RULE}.")


def _integer(data: dict[str, Any], name: str, low: int, high: int) -> int:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadMessage(f"'{name}' must be a whole number from {low} to {high}.")
    return value


def _strength(value: object) -> float:
    # The comparisons are false for NaN, and right for integers too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_STRENGTH:
        raise BadMessage(f"'strength' must be a number from 0 to {MAX_STRENGTH:g}.")
    return float(value)


def _columns(value: object) -> tuple[Column, ...]:
    known = isinstance(value, list) and 0 < len(value) <= len(COLUMNS) and all(key in COLUMNS for key in value)
    if not known or len(set(cast(list[str], value))) != len(cast(list[str], value)):
        raise BadMessage("'columns' must be a list of 'persona', 'base' or both.")
    return tuple(cast(list[Column], value))


def _messages(value: object) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_MESSAGES:
        raise BadMessage(f"'messages' must be a list of 1 to {MAX_MESSAGES} messages.")
    messages = tuple(_message(item, index) for index, item in enumerate(value))
    if sum(len(message["content"]) for message in messages) > MAX_MESSAGE_CHARS:
        raise BadMessage(f"The messages are longer than {MAX_MESSAGE_CHARS} characters together.")
    return messages


def _message(item: object, index: int) -> dict[str, str]:
    role, content = (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, None)
    if role not in ROLES or not isinstance(content, str) or not content.strip():
        raise BadMessage(f"'messages[{index}]' must have a role ({', '.join(ROLES)}) and a text.")
    _check_storable(f"messages[{index}]", content)
    return {"role": role, "content": content}
