"""What a locked field of a persona keeps requests from setting: the field itself, and whatever would undo it.

Under each lock of `personas.definition.LOCKABLE` stand the fields of all four request bodies, with the reason where it
isn't the name. A null is what leaving a field out is; any other value sets it, of whatever type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from inference.gateway.errors import LockedParameter

SYSTEM_ROLES = ("system", "developer")
# Templates write other roles as they come, and with them anything at all.
_ORDINARY_ROLES = ("user", "assistant", "tool", "function")
# What of `chat_template_kwargs` can't change what a persona is told.
_HARMLESS_TEMPLATE_KWARGS = ("enable_thinking", "thinking")

# vLLM gives beams parameters of their own: no sampling, no stops, no grammar.
_BEAMS = "use_beam_search"

_LOCKED_WITH: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature", _BEAMS),
    "top_p": ("top_p", _BEAMS),
    "top_k": ("top_k", _BEAMS),
    "min_p": ("min_p", _BEAMS),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "presence_penalty": ("presence_penalty", _BEAMS),
    "frequency_penalty": ("frequency_penalty", _BEAMS),
    "repetition_penalty": ("repetition_penalty", _BEAMS),
    "seed": ("seed", _BEAMS),
    "stop": (
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "min_tokens",  # no stop is looked for before
        # With these a stop can be made impossible to say.
        "allowed_token_ids",
        "bad_words",
        "logit_bias",
        _BEAMS,
    ),
    "response_format": (
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "guided_json_object",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "structural_tag",
        # A call of a tool has the tool's format: vLLM drops the response's for it.
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        _BEAMS,
    ),
    "tools": ("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "functions", "function_call"),
    "steer_skill": ("steer_skill", "steer_alpha"),
    "system": ("instructions", "previous_input_messages", "chat_template"),
}


def refuse_locked(body: Mapping[str, Any], locked: Collection[str]) -> None:
    """Raises LockedParameter for the first field of `body` that one of the `locked` keeps from it."""
    for lock in locked:
        for field in _LOCKED_WITH[lock]:
            if body.get(field) is not None:
                raise LockedParameter(field, lock)
        for field in _found_inside(body, lock):
            raise LockedParameter(field, lock)


def _found_inside(body: Mapping[str, Any], lock: str) -> Iterator[str]:
    """Fields that the lock keeps out and that are no top-level ones."""
    template_kwargs = body.get("chat_template_kwargs")
    names = list(template_kwargs) if isinstance(template_kwargs, Mapping) else []
    if lock == "system":
        for field in ("messages", "input"):
            yield from _spoken_by_others(field, body.get(field))
        yield from (f"chat_template_kwargs.{name}" for name in names if name not in _HARMLESS_TEMPLATE_KWARGS)
    elif lock == "tools":
        yield from (f"chat_template_kwargs.{name}" for name in names if "tool" in name)
    elif lock == "response_format":
        text = body.get("text")
        if isinstance(text, Mapping) and text.get("format") is not None:
            yield "text.format"


def _spoken_by_others(field: str, items: object) -> Iterator[str]:
    """The messages that are neither the user's nor the model's own. Items without a role are no messages."""
    if isinstance(items, list):
        for index, item in enumerate(items):
            if isinstance(item, Mapping) and item.get("role", "user") not in _ORDINARY_ROLES:
                yield f"{field}[{index}]"
