"""The SteerGuard article's fields, `steer_skill` and `steer_alpha`: scalars, or lists with an element per prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.gateway.errors import InvalidRequest
from personas.definition import MAX_ALPHA

# Ours, never the engine's.
SKILL_FIELDS = ("steer_skill", "steer_alpha")


@dataclass(frozen=True, slots=True)
class AskedSkill:
    """A skill by its name. `alpha` None: at the strength that is recommended for it."""

    name: str
    alpha: float | None


def asked_skills(body: Mapping[str, Any], prompts: int) -> list[AskedSkill | None]:
    """What each of a request's `prompts` asks for, None where it is nothing. Raises InvalidRequest."""
    skill, alpha = (body.get(field) for field in SKILL_FIELDS)
    if skill is None:
        if alpha is not None:
            raise InvalidRequest("'steer_alpha' needs a 'steer_skill'.", param="steer_alpha")
        return [None] * prompts
    names = _spread("steer_skill", skill, prompts)
    alphas = _spread("steer_alpha", alpha, prompts)
    return [_asked(name, at) for name, at in zip(names, alphas, strict=True)]


def _spread(field: str, value: object, prompts: int) -> list[Any]:
    """A value for each prompt: a list as it stands, anything else for all of them."""
    if not isinstance(value, list):
        return [value] * prompts
    if len(value) != prompts:
        elements, expected = _count(len(value), "element"), _count(prompts, "prompt")
        raise InvalidRequest(f"'{field}' has {elements}, and the request {expected}.", param=field)
    return value


def _asked(name: object, alpha: object) -> AskedSkill | None:
    """In a list, a null skill is none, whatever stands beside it; a null alpha is the recommended one."""
    if alpha is not None:
        if isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise InvalidRequest("'steer_alpha' must be a number, or a list of numbers.", param="steer_alpha")
        # Compared as it came: an integer too large for a float has no float to be checked.
        if not (abs(alpha) <= MAX_ALPHA) or not math.isfinite(alpha):
            raise InvalidRequest(f"'steer_alpha' must be between ±{MAX_ALPHA:g}.", param="steer_alpha")
    if name is None:
        return None
    if not isinstance(name, str):
        raise InvalidRequest("'steer_skill' must be the name of a skill, or a list of names.", param="steer_skill")
    return AskedSkill(name, None if alpha is None else float(alpha))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
