"""The schema of a persona's definition, for the OpenAPI document. personas/definition.py is what checks one."""

from __future__ import annotations

from typing import Any

from personas import definition as rules

_VECTOR = "0" * 64

EXAMPLE: dict[str, Any] = {
    "blend": [{"vector": _VECTOR, "alpha": 1.5, "positions": "response", "layers": [10, 14]}],
    "system_prompt": "You work for Acme.",
    "sampling": {"temperature": 0.2, "max_tokens": 300},
    "output_format": None,
    "max_dose": 1.0,
    "locked": ["system"],
}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def _integer(low: int, high: int) -> dict[str, Any]:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


_COMPONENT: dict[str, Any] = {
    "type": "object",
    "required": ["vector"],
    "additionalProperties": False,
    "properties": {
        "vector": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "A vector's digest"},
        "skill": {
            "type": "string",
            "maxLength": rules.MAX_SKILL_CHARS,
            "description": "What the vector is called; filled in by the server",
        },
        "alpha": {"type": "number", "minimum": -rules.MAX_ALPHA, "maximum": rules.MAX_ALPHA, "default": 1.0},
        "positions": {"type": "string", "enum": ["all", "prompt", "response"], "default": "all"},
        "layers": {
            "type": ["array", "null"],
            "items": {"type": "integer", "minimum": 0, "maximum": rules.MAX_BLOCK_INDEX},
            "minItems": 1,
            "uniqueItems": True,
            "description": "0-based blocks; null: all that the vector has",
        },
    },
}

_SAMPLING: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "temperature": _number(0, 2),
        "top_p": _number(0, 1),
        "top_k": _integer(-1, rules.MAX_TOKENS),
        "min_p": _number(0, 1),
        "max_tokens": _integer(1, rules.MAX_TOKENS),
        "presence_penalty": _number(-2, 2),
        "frequency_penalty": _number(-2, 2),
        "repetition_penalty": _number(0, 2),
        "seed": _integer(-(2**63), 2**63 - 1),
        "stop": {
            "type": ["array", "string", "null"],
            "items": {"type": "string", "minLength": 1, "maxLength": rules.MAX_STOP_CHARS},
            "maxItems": rules.MAX_STOPS,
        },
    },
}

DEFINITION: dict[str, Any] = {
    "type": "object",
    "description": "What a persona does. What is left out does nothing.",
    "additionalProperties": False,
    "properties": {
        "blend": {"type": "array", "items": _COMPONENT, "maxItems": rules.MAX_COMPONENTS},
        "system_prompt": {"type": "string", "maxLength": rules.MAX_SYSTEM_PROMPT_CHARS},
        "sampling": _SAMPLING,
        "output_format": {"type": ["object", "null"], "description": "OpenAI's `response_format`"},
        "max_dose": _number(0, rules.MAX_DOSE),
        "locked": {
            "type": "array",
            "items": {"type": "string", "enum": list(rules.LOCKABLE)},
            "description": "Request fields that only the persona sets",
        },
        "adapter": {"type": "null", "description": "Not served yet"},
    },
    "example": EXAMPLE,
}
