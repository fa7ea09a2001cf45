"""What a job is asked to do: `POST /v1/jobs` checked at once, as a request for the answer itself would be.

    {"persona": "support", "prompt": "…"}      completed, as at /v1/completions
    {"model": "acme/support", "messages": […]}  answered, as at /v1/chat/completions

Every other field is a field of that endpoint's. The revision is pinned when the job is made: a persona published
afterwards changes nothing about a job that waits.
"""

from __future__ import annotations

from typing import Any

from inference.gateway.call import Call
from inference.gateway.compose import Kind, compose_parts, count_prompts, wants_stream
from inference.gateway.errors import InvalidRequest
from inference.gateway.resolve import asked_model, resolve_model, resolve_skills
from inference.gateway.skills import asked_skills

# `adapter` is what other job APIs call it.
NAMES = ("model", "persona", "adapter")
PATHS: dict[Kind, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


async def read_request(call: Call, asked: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a generation job: `path`, `body`, `model` as asked and `revision`.

    Raises InvalidRequest, UnknownModel, EngineUnavailable.
    """
    body = {name: value for name, value in asked.items() if name not in (*NAMES, "stream", "stream_options")}
    wants_stream(asked)
    model = _model_of(asked)
    kind = _kind_of(body)
    live, tenant = call.runtime.live, call.key.tenant
    target = await resolve_model(model, tenant=tenant, live=live, personas=call.key.personas)
    skills = asked_skills(body, count_prompts(body, kind))
    # Thrown away: what would be refused is refused now, to whoever asks, and not later to whoever watches.
    compose_parts(
        {**body, "model": model, "stream": True},
        kind=kind,
        definition=target.definition,
        base_model=target.base_model,
        cache_salt=call.runtime.cache_salt(tenant),
        skills=await resolve_skills(skills, tenant=tenant, base_model=target.base_model, live=live),
    )
    # A beam search has no stream: its answer comes whole.
    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if body.get("use_beam_search"):
        streamed = {"stream": False}
    return {
        "path": PATHS[kind],
        "body": {**body, **streamed, "model": target.name},
        "model": model,
        "revision": target.revision.name if target.revision else None,
    }


def _model_of(asked: dict[str, Any]) -> str:
    given = [name for name in NAMES if asked.get(name) is not None]
    if len(given) != 1:
        raise InvalidRequest("A job needs one of 'persona', 'adapter' and 'model'.", param="model")
    try:
        return asked_model({"model": asked[given[0]]})
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("'model'", f"'{given[0]}'"), param=given[0]) from None


def _kind_of(body: dict[str, Any]) -> Kind:
    prompt, messages = body.get("prompt"), body.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidRequest("A job needs either 'prompt' or 'messages'.", param="prompt")
    if messages is not None:
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("'messages' must be a list of messages.", param="messages")
        return "chat"
    if not isinstance(prompt, str | list) or not prompt:
        raise InvalidRequest("'prompt' must be a text, or a list of texts.", param="prompt")
    return "completion"
