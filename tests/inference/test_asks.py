"""Whatever comes over the playground's socket is either understood or refused in words."""

import json

from hypothesis import given
from hypothesis import strategies as st

from inference.asks import COLUMNS, Ask, BadMessage, Stop, parse_message
from personas.playground import MAX_MESSAGE_CHARS, MAX_STRENGTH, MAX_TOKENS

GOOD = {
    "type": "ask",
    "id": "q1",
    "persona": "acme/support",
    "messages": [{"role": "user", "content": "Hi"}],
    "strength": 1.0,
    "columns": ["persona", "base"],
    "max_tokens": 32,
    "seed": 7,
}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


def test_a_good_question_is_understood() -> None:
    ask = parse_message(json.dumps(GOOD))
    assert ask == Ask(
        id="q1",
        persona="acme/support",
        messages=({"role": "user", "content": "Hi"},),
        strength=1.0,
        columns=("persona", "base"),
        max_tokens=32,
        seed=7,
    )


def test_what_isnt_a_messages_role_or_text_is_left_out() -> None:
    message = {"role": "user", "content": "Hi", "name": "x", "tool_calls": [1]}
    ask = parse_message(json.dumps({**GOOD, "messages": [message]}))
    assert isinstance(ask, Ask)
    assert ask.messages == ({"role": "user", "content": "Hi"},)


@given(st.text(max_size=200))
def test_any_text_is_refused_or_understood(text: str) -> None:
    try:
        assert isinstance(parse_message(text), Ask | Stop)
    except BadMessage as error:
        assert str(error)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), anything, min_size=1))
def test_a_question_that_is_understood_keeps_every_bound(changes: dict[str, object]) -> None:
    try:
        ask = parse_message(json.dumps({**GOOD, **changes}))
    except BadMessage:
        return
    if isinstance(ask, Stop):
        return
    assert 0 <= ask.strength <= MAX_STRENGTH
    assert 1 <= ask.max_tokens <= MAX_TOKENS
    assert ask.columns and set(ask.columns) <= set(COLUMNS)
    assert 0 < sum(len(message["content"]) for message in ask.messages) <= MAX_MESSAGE_CHARS
