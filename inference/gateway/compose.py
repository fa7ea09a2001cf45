"""From what a client asked and what a persona says to the body that the engine gets. Pure: no state, no I/O.

A persona supplies defaults and steering; the request's own parameters win over the defaults and never over the
steering. Steering is named, not sent: digests, strengths and positions in `vllm_xargs.steerguard`, a few hundred
bytes that the engine's plugin checks where the request enters.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from inference.gateway.errors import FieldRefused, InvalidRequest, Unsupported
from inference.gateway.locks import SYSTEM_ROLES, refuse_locked
from inference.gateway.skills import SKILL_FIELDS
from personas.definition import BlendComponent, Definition, Sampling

Kind = Literal["chat", "completion", "responses", "embedding"]
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
MAX_EMBEDDINGS = 2048  # of one request, as at OpenAI

# What limits go by. vLLM would read "100" and 100.0 as numbers too, and so past them.
COUNTS = ("n", "best_of", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")

PLAIN_MODEL = Definition()


@dataclass(frozen=True, slots=True)
class Part:
    """What one engine is asked: `body`, for those `prompts` of the client's request (their indices)."""

    body: dict[str, Any]
    prompts: Sequence[int]


def compose_parts(
    body: Body,
    *,
    kind: Kind,
    definition: Definition,
    base_model: str,
    cache_salt: str,
    skills: Sequence[BlendComponent | None],
) -> list[Part]:
    """The engine's requests for `body`, whose prompts are steered by `skills` on top of the persona's blend.

    One for each different skill and strength, since vLLM takes one steering per request. Raises InvalidRequest.
    """
    by_skill: dict[BlendComponent | None, list[int]] = {}
    for index, skill in enumerate(skills):
        by_skill.setdefault(skill, []).append(index)
    if len(by_skill) > 1 and body.get("prompt_embeds") is not None:
        raise InvalidRequest("'prompt_embeds' can't be steered by a list of skills.", param="prompt_embeds")
    parts = []
    for skill, prompts in by_skill.items():
        asked = body if len(by_skill) == 1 else {**body, "prompt": [body["prompt"][index] for index in prompts]}
        composed = compose(
            asked, kind=kind, definition=definition, base_model=base_model, cache_salt=cache_salt, skill=skill
        )
        parts.append(Part(composed, prompts))
    return parts


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
    refuse_locked(body, definition.locked)
    upstream = {name: value for name, value in body.items() if value is not None and name not in SKILL_FIELDS}
    if definition.system_prompt:
        _refuse_what_hides_the_system_prompt(body)
    upstream["model"] = base_model
    upstream["cache_salt"] = cache_salt
    match kind:
        case "chat":
            upstream["messages"] = _prepend_to_messages(definition.system_prompt, body.get("messages"))
        case "completion":
            upstream["prompt"] = _prepend_to_prompt(definition.system_prompt, body.get("prompt"))
        case "responses":
            _compose_response(upstream, definition.system_prompt)
        case "embedding":
            _check_embedding(body, definition, skill)
            return upstream
    _fill_defaults(upstream, definition, kind)
    if upstream.get("stream") and kind != "responses":
        # The gateway reports usage whether or not the client wants to read it; `sse` withholds it from those who don't.
        upstream["stream_options"] = {**_stream_options(body), "include_usage": True}
    blend = definition.blend
    if strength != 1.0:
        blend = tuple(replace(component, alpha=component.alpha * strength) for component in blend if strength)
    if steering := write_steering((*blend, skill) if skill else blend, definition.max_dose):
        if upstream.get("use_beam_search"):
            raise InvalidRequest("Beam search can't be steered; ask without it.", param="use_beam_search")
        upstream["vllm_xargs"] = {**upstream.get("vllm_xargs", {}), STEERING_FIELD: steering}
    return upstream


def whole_of(parts: Sequence[Part]) -> dict[str, Any]:
    """The parts' bodies as one again, for what is counted over the whole request."""
    first = parts[0].body
    if len(parts) == 1:
        return first
    return {**first, "prompt": [prompt for part in parts for prompt in part.body["prompt"]]}


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


def count_prompts(body: Body, kind: Kind) -> int:
    """How many prompts a request has. Raises InvalidRequest where it asks for too many answers at once.

    Everybody's answers come out of the same batch, which one request may not fill.
    """
    if kind == "embedding":
        many = _length(body.get("input"))
        if many > MAX_EMBEDDINGS:
            raise InvalidRequest(f"'input' must be at most {MAX_EMBEDDINGS} texts.", param="input")
        return many
    for name in COUNTS:
        count = body.get(name)
        if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
            raise InvalidRequest(f"'{name}' must be an integer.", param=name)
        if count is not None and count > MAX_ANSWERS and name in ("n", "best_of"):
            raise InvalidRequest(f"'{name}' must be at most {MAX_ANSWERS}.", param=name)
    many = _length(body.get("prompt")) if kind == "completion" else 1
    embeds = body.get("prompt_embeds")
    total = many + (len(embeds) if isinstance(embeds, list) else 0)
    if total * answers_per_prompt(body) > MAX_ANSWERS:
        raise InvalidRequest(f"'prompt' and 'n' must make at most {MAX_ANSWERS} answers.", param="prompt")
    return many


def answers_per_prompt(body: Body) -> int:
    n = body.get("n")
    return n if isinstance(n, int) and n > 0 else 1


def _length(texts: object) -> int:
    """How many texts: a list of integers is one, as token ids."""
    return len(texts) if isinstance(texts, list) and texts and not isinstance(texts[0], int) else 1


def wants_stream(body: Body) -> bool:
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidRequest("'stream' must be true or false.", param="stream")
    return bool(stream)


def wants_usage(body: Body) -> bool:
    """Whether the client asked a stream to end with the usage."""
    return _stream_options(body).get("include_usage") is True


@lru_cache(maxsize=4096)
def write_steering(blend: tuple[BlendComponent, ...], max_dose: float | None) -> str | None:
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
        if not isinstance(message, dict):
            raise InvalidRequest(f"'messages[{index}]' must be an object.", param=f"messages[{index}]")
    if not system_prompt:
        return messages
    first, rest = messages[0], messages[1:]
    if first.get("role") not in SYSTEM_ROLES:
        return [{"role": "system", "content": system_prompt}, *messages]
    return [_prepend_to_content(system_prompt, first, field="messages", part_type="text"), *rest]


def _prepend_to_content(system_prompt: str, message: Body, *, field: str, part_type: str) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": f"{system_prompt}\n\n{content}"}
    if isinstance(content, list):
        return {**message, "content": [{"type": part_type, "text": f"{system_prompt}\n\n"}, *content]}
    raise InvalidRequest(f"'{field}[0].content' must be text or a list of parts.", param=f"{field}[0].content")


def _compose_response(upstream: dict[str, Any], system_prompt: str) -> None:
    """What the Responses API has of its own: `instructions`, and a memory of earlier answers, which isn't used.

    vLLM keeps that memory in its process for everybody who knows an id, so nothing is put there or asked from it.
    """
    if upstream.get("previous_response_id") is not None:
        message = "'previous_response_id' isn't supported: send the conversation in 'input'."
        raise Unsupported(message, param="previous_response_id")
    if upstream.get("background"):
        raise Unsupported("'background' isn't supported: use a job, or a stream.", param="background")
    upstream["store"] = False
    items = upstream.get("input")
    if items is None or not isinstance(items, str | list) or not items:
        raise InvalidRequest("'input' must be text or a list of at least one item.", param="input")
    instructions = upstream.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidRequest("'instructions' must be text.", param="instructions")
    if not system_prompt:
        return
    first = items[0] if isinstance(items, list) else None
    if instructions is None and isinstance(first, Mapping) and first.get("role") in SYSTEM_ROLES:
        upstream["input"] = [
            _prepend_to_content(system_prompt, first, field="input", part_type="input_text"),
            *items[1:],
        ]
    else:
        upstream["instructions"] = f"{system_prompt}\n\n{instructions}" if instructions else system_prompt


def _check_embedding(body: Body, definition: Definition, skill: BlendComponent | None) -> None:
    """An embedding is never passed off as a persona's when what the persona adds is missing from it."""
    if skill is not None:
        raise Unsupported("Embeddings can't be steered; ask without 'steer_skill'.", param="steer_skill")
    if definition.blend or definition.system_prompt:
        raise Unsupported("A persona can't make embeddings: ask the base model for them.", param="model")
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise InvalidRequest("'encoding_format' must be 'float' or 'base64'.", param="encoding_format")
    if body.get("stream"):
        raise InvalidRequest("Embeddings aren't streamed.", param="stream")


def _refuse_what_hides_the_system_prompt(body: Body) -> None:
    for name in ("truncate_prompt_tokens", "prompt_embeds"):
        # The one keeps the end of the prompt and cuts off what the persona is told, the other has no text to tell it.
        if body.get(name) is not None:
            raise FieldRefused(name)
    if body.get("truncation") not in (None, "disabled"):
        raise FieldRefused("truncation")


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


def _fill_defaults(upstream: dict[str, Any], definition: Definition, kind: Kind) -> None:
    for name, value in _sampling_defaults(definition.sampling).items():
        if name != "max_tokens":
            upstream.setdefault(name, value)
        elif kind == "responses":
            upstream.setdefault("max_output_tokens", value)
        elif "max_completion_tokens" not in upstream:
            upstream.setdefault(name, value)
    if definition.output_format is not None:
        _fill_output_format(upstream, definition.output_format, kind)


def _fill_output_format(upstream: dict[str, Any], output_format: Mapping[str, Any], kind: Kind) -> None:
    """Where the request has none of its own, in either way of asking for one."""
    if upstream.get("structured_outputs") is not None:
        return
    if kind != "responses":
        upstream.setdefault("response_format", dict(output_format))
        return
    text = upstream.get("text", {})
    if not isinstance(text, Mapping):
        raise InvalidRequest("'text' must be an object.", param="text")
    if text.get("format") is None:
        # The Responses API has the schema's parts beside the type.
        schema = output_format.get("json_schema", {})
        upstream["text"] = {**text, "format": {"type": output_format["type"], **schema}}


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
