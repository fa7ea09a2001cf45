"""From what a client asked and what a persona says to the body that the engine gets. Pure: no state, no I/O.

A persona supplies defaults and steering; the request's own parameters win over the defaults and never over the
steering. Steering is named, not sent: digests, strengths and positions in `vllm_xargs.steerguard`, a few hundred
bytes that the engine's plugin checks where the request enters.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from inference.gateway.errors import FieldRefused, InvalidRequest
from personas.definition import MAX_ALPHA, BlendComponent, Definition, Sampling

Kind = Literal["chat", "completion"]
Body = Mapping[str, Any]

STEERING_FIELD = "steerguard"

# vLLM's fields that reach across tenants: whose cached prompt is shared, whose request has which id and is served
# first, and where KV blocks come from. A null is what leaving them out is.
REFUSED_FIELDS = (
    "cache_salt",
    "ec_transfer_params",
    "kv_transfer_params",
    "priority",
    "request_id",
    "session_id",
)
REFUSED_XARGS = ("ec_transfer_params", "kv_transfer_params", "session_id")

MAX_ANSWERS = 64  # of one request: prompts times n

# The SteerGuard article's fields: ours, never the engine's.
SKILL_FIELDS = ("steer_skill", "steer_alpha")

PLAIN_MODEL = Definition()


def compose(
    body: Body,
    *,
    kind: Kind,
    definition: Definition,
    base_model: str,
    cache_salt: str,
    skill: BlendComponent | None = None,
    strength: float = 1.0,
) -> dict[str, Any]:
    """The engine's request for `body` as the persona `definition` answers it.

    `skill` is added to the persona's blend as it stands; `strength` multiplies the persona's alphas, 0 being
    unsteered. Raises InvalidRequest.
    """
    refuse_fields(body)
    upstream = {name: value for name, value in body.items() if value is not None and name not in SKILL_FIELDS}
    _check_size(body)
    if definition.system_prompt and body.get("truncate_prompt_tokens") is not None:
        # It keeps the end of the prompt, and so cuts off what the persona is told.
        raise FieldRefused("truncate_prompt_tokens")
    upstream["model"] = base_model
    upstream["cache_salt"] = cache_salt
    if kind == "chat":
        upstream["messages"] = _prepend_to_messages(definition.system_prompt, body.get("messages"))
    else:
        upstream["prompt"] = _prepend_to_prompt(definition.system_prompt, body.get("prompt"))
    _fill_defaults(upstream, definition)
    if upstream.get("stream"):
        # The gateway reports usage whether or not the client wants to read it; `sse` withholds it from those who don't.
        upstream["stream_options"] = {**_stream_options(body), "include_usage": True}
    blend = [replace(component, alpha=component.alpha * strength) for component in definition.blend if strength]
    if steering := write_steering([*blend, *([skill] if skill else [])], definition.max_dose):
        if upstream.get("use_beam_search"):
            raise InvalidRequest("Beam search can't be steered; ask without it.", param="use_beam_search")
        upstream["vllm_xargs"] = {**upstream.get("vllm_xargs", {}), STEERING_FIELD: steering}
    return upstream


def is_steered(upstream: Body) -> bool:
    """Whether a composed request asks for steering, so that its answer has to say it was applied."""
    return STEERING_FIELD in (upstream.get("vllm_xargs") or {})


def refuse_fields(body: Body) -> None:
    """Raises FieldRefused for a field that is the gateway's alone."""
    for name in REFUSED_FIELDS:
        if body.get(name) is not None:
            raise FieldRefused(name)
    xargs = body.get("vllm_xargs")
    if xargs is None:
        return
    if not isinstance(xargs, Mapping):
        raise InvalidRequest("'vllm_xargs' must be an object.", param="vllm_xargs")
    for name in xargs:
        if name in REFUSED_XARGS or name.startswith(STEERING_FIELD):
            raise FieldRefused(f"vllm_xargs.{name}")


def _check_size(body: Body) -> None:
    """One request may not fill a whole batch: everybody's answers come out of the same one."""
    for name in ("n", "best_of"):
        count = body.get(name)
        if isinstance(count, int) and count > MAX_ANSWERS:
            raise InvalidRequest(f"'{name}' must be at most {MAX_ANSWERS}.", param=name)
    prompts = body.get("prompt")
    # A list of integers is one prompt, as token ids.
    many = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    n = body.get("n")
    if many * (n if isinstance(n, int) else 1) > MAX_ANSWERS:
        raise InvalidRequest(f"'prompt' and 'n' must make at most {MAX_ANSWERS} answers.", param="prompt")


def wants_stream(body: Body) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("'stream' must be true or false.", param="stream")
    return bool(stream)


def wants_usage(body: Body) -> bool:
    """Whether the client asked a stream to end with the usage."""
    return _stream_options(body).get("include_usage") is True


def asked_skill(body: Body) -> tuple[str, float | None] | None:
    """The article's `steer_skill` and `steer_alpha`. Raises InvalidRequest."""
    name, alpha = (body.get(field) for field in SKILL_FIELDS)
    if name is None:
        if alpha is not None:
            raise InvalidRequest("'steer_alpha' needs a 'steer_skill'.", param="steer_alpha")
        return None
    if not isinstance(name, str):
        raise InvalidRequest("'steer_skill' must be the name of one skill.", param="steer_skill")
    if alpha is None:
        return name, None
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise InvalidRequest("'steer_alpha' must be a number.", param="steer_alpha")
    # Compared as it came: an integer too large for a float has no float to be checked.
    if not (abs(alpha) <= MAX_ALPHA) or not math.isfinite(alpha):
        raise InvalidRequest(f"'steer_alpha' must be between ±{MAX_ALPHA:g}.", param="steer_alpha")
    return name, float(alpha)


def write_steering(blend: Sequence[BlendComponent], max_dose: float | None) -> str | None:
    """The plugin's JSON for a blend, None when it adds nothing. A component of strength 0 adds nothing."""
    components = [_write_component(component) for component in blend if component.alpha]
    if not components:
        return None
    spec: dict[str, Any] = {"blend": components}
    if max_dose is not None:
        spec["max_dose"] = max_dose
    return json.dumps(spec, separators=(",", ":"))


def derive_cache_salt(secret: str, tenant: str) -> str:
    """What keeps one tenant from timing another's cached prompts: not guessable without the secret."""
    return hmac.new(secret.encode(), f"steerguard.cache_salt.v1|{tenant}".encode(), hashlib.sha256).hexdigest()


def _write_component(component: BlendComponent) -> dict[str, Any]:
    written: dict[str, Any] = {
        "vector": component.vector,
        "alpha": component.alpha,
        "positions": component.positions,
    }
    if component.layers is not None:
        written["layers"] = list(component.layers)
    return written


def _prepend_to_messages(system_prompt: str, messages: object) -> list[Any]:
    """The conversation with the persona's words in front of the client's own system message, if it has one.

    One message and not two: many chat templates accept a system message in first place only.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("'messages' must be a list of at least one message.", param="messages")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidRequest(f"'messages[{index}]' must be an object.", param=f"messages[{index}]")
    if not system_prompt:
        return messages
    first, rest = messages[0], messages[1:]
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": system_prompt}, *messages]
    content = first.get("content")
    if isinstance(content, str):
        content = f"{system_prompt}\n\n{content}"
    elif isinstance(content, list):
        content = [{"type": "text", "text": f"{system_prompt}\n\n"}, *content]
    else:
        raise InvalidRequest("'messages[0].content' must be text or a list of parts.", param="messages[0].content")
    return [{**first, "content": content}, *rest]


def _prepend_to_prompt(system_prompt: str, prompt: object) -> Any:
    """A plain completion knows no roles, so the persona's words become the text before the prompt."""
    if prompt is None:
        raise InvalidRequest("'prompt' is missing.", param="prompt")
    if not system_prompt:
        return prompt
    if isinstance(prompt, str):
        return f"{system_prompt}\n\n{prompt}"
    if isinstance(prompt, list) and prompt and all(isinstance(item, str) for item in prompt):
        return [f"{system_prompt}\n\n{item}" for item in prompt]
    raise InvalidRequest(
        "'prompt' must be text, or a list of texts, for a persona that has a system prompt.", param="prompt"
    )


def _fill_defaults(upstream: dict[str, Any], definition: Definition) -> None:
    for name, value in _sampling_defaults(definition.sampling).items():
        if name != "max_tokens" or "max_completion_tokens" not in upstream:
            upstream.setdefault(name, value)
    if definition.output_format is not None:
        upstream.setdefault("response_format", dict(definition.output_format))


@lru_cache(maxsize=4096)
def _sampling_defaults(sampling: Sampling) -> Mapping[str, Any]:
    """Kept, because taking a dataclass apart costs more than all the rest of composing."""
    return sampling.as_json()


def _stream_options(body: Body) -> Mapping[str, Any]:
    options = body.get("stream_options")
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise InvalidRequest("'stream_options' must be an object.", param="stream_options")
    return options
