"""The inference API's part of the OpenAPI document, by hand: the gateway is no Django view.

Bodies are described as far as SteerGuard reads them; everything else passes through to vLLM. docs/api.md is the guide.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TAG = "inference"
SECURITY: list[Schema] = [{"key": []}]

FAILURES = {
    "400": "A field is wrong; `param` names it.",
    "401": "The key is unknown, expired or revoked.",
    "403": "The key's scopes don't suffice.",
    "404": "There is no such model for this key.",
    "413": "The body is larger than 8 MiB.",
    "429": "A limit is reached; `Retry-After` says when to ask again.",
    "502": "The engine failed at this request.",
    "503": "No engine can answer now; `Retry-After` says when to ask again.",
}

MODEL: Schema = {
    "type": "string",
    "description": "A persona (`acme/support`, or `support` of the key's own tenant), a revision of it "
    "(`acme/support@7`), or the base model, unsteered",
}
STEERING: Schema = {
    "steer_skill": {
        "type": ["string", "array", "null"],
        "items": {"type": ["string", "null"]},
        "description": "A skill on top of the persona; a list goes with a list of prompts",
    },
    "steer_alpha": {
        "type": ["number", "array", "null"],
        "items": {"type": ["number", "null"]},
        "description": "Its strength; the recommended one without it",
    },
}
SAMPLING: Schema = {
    "stream": {"type": ["boolean", "null"]},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1},
}
USAGE: Schema = {
    "type": ["object", "null"],
    "properties": {name: {"type": "integer"} for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
}

CHAT_EXAMPLE: Schema = {
    "model": "acme/support",
    "messages": [{"role": "user", "content": "My parcel arrived broken."}],
    "max_tokens": 120,
}
CHAT_ANSWER: Schema = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1764579600,
    "model": "acme/support",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "I am so sorry …"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 24, "completion_tokens": 41, "total_tokens": 65},
}


def add_inference_paths(result: Schema, generator: object, request: object, public: bool) -> Schema:
    """A drf-spectacular postprocessing hook."""
    result["components"]["schemas"] |= _schemas()
    result["paths"] |= _paths()
    return result


def _paths() -> Schema:
    return {
        "/v1/chat/completions": {
            "post": _asks(
                "create_chat_completion",
                "Ask a persona",
                "ChatCompletionRequest",
                "ChatCompletion",
                CHAT_EXAMPLE,
                CHAT_ANSWER,
            )
        },
        "/v1/completions": {
            "post": _asks(
                "create_completion",
                "Have a persona go on with a text, or a list of texts",
                "CompletionRequest",
                "Completion",
                {"model": "acme/support", "prompt": ["Dear customer,", "To whom it may concern,"], "max_tokens": 40},
            )
        },
        "/v1/responses": {
            "post": _asks(
                "create_response",
                "Ask a persona, in the shape of OpenAI's Responses API",
                "ResponseRequest",
                "Response",
                {"model": "acme/support", "input": "My parcel arrived broken."},
            )
        },
        "/v1/embeddings": {
            "post": _asks(
                "create_embedding",
                "Embed texts, where an engine serves a model that does",
                "EmbeddingRequest",
                "EmbeddingList",
                {"model": "SmolLM2-135M-Instruct", "input": ["one text", "another"]},
                streams=False,
            )
        },
        "/v1/models": {
            "get": _operation(
                "list_models", "What the key may name in `model`", _answers("ModelList"), ["401", "403", "429", "503"]
            )
        },
        "/v1/models/{id}": {
            "get": _operation("get_model", "One of them", _answers("Model"), ["400", "401", "403", "404", "429", "503"])
            | {
                "parameters": [
                    {
                        "in": "path",
                        "name": "id",
                        "required": True,
                        "schema": {"type": "string"},
                        "description": "With its slash, such as `acme/support`",
                    }
                ]
            }
        },
    }


def _asks(
    name: str, summary: str, takes: str, gives: str, example: Schema, answer: Schema | None = None, streams: bool = True
) -> Schema:
    answers = _answers(gives, answer)
    if streams:
        answers["200"]["content"]["text/event-stream"] = {
            "schema": {"type": "string", "description": "With `stream`: events `data: {…}`, then `data: [DONE]`"}
        }
    body = {"required": True, "content": {"application/json": {"schema": _ref(takes), "example": example}}}
    return _operation(name, summary, answers, list(FAILURES)) | {"requestBody": body}


def _operation(name: str, summary: str, answers: Schema, failures: list[str]) -> Schema:
    failed = {
        status: {"description": FAILURES[status], "content": {"application/json": {"schema": _ref("InferenceError")}}}
        for status in failures
    }
    return {
        "operationId": name,
        "summary": summary,
        "description": summary,
        "tags": [TAG],
        "security": SECURITY,
        "responses": answers | failed,
    }


def _answers(schema: str, example: Schema | None = None) -> Schema:
    content: Schema = {"schema": _ref(schema)}
    if example is not None:
        content["example"] = example
    headers = {
        name: {"schema": {"type": "string"}, "description": description}
        for name, description in {
            "x-request-id": "The id that the logs here and on the engine have",
            "x-steerguard-revision": "What answered, such as `acme/support@7`",
            "x-steerguard-engine": "Where",
            "x-steerguard-dose": "What was applied",
        }.items()
    }
    return {"200": {"description": "The answer", "headers": headers, "content": {"application/json": content}}}


def _schemas() -> Schema:
    texts: Schema = {"type": ["string", "array"], "items": {}}
    return {
        "ChatCompletionRequest": _object(
            ["model", "messages"],
            model=MODEL,
            messages={"type": "array", "items": {"type": "object"}},
            **SAMPLING,
            **STEERING,
        ),
        "CompletionRequest": _object(["model", "prompt"], model=MODEL, prompt=texts, **SAMPLING, **STEERING),
        "ResponseRequest": _object(["model", "input"], model=MODEL, input=texts, stream=SAMPLING["stream"]),
        "EmbeddingRequest": _object(["model", "input"], model=MODEL, input=texts),
        "ChatCompletion": _completion(),
        "Completion": _completion(),
        "Response": _object(["id"], id={"type": "string"}, model={"type": "string"}, output={"type": "array"}),
        "EmbeddingList": _object(["data"], data={"type": "array", "items": {"type": "object"}}, usage=USAGE),
        "Model": _object(["id", "object"], id={"type": "string"}, object={"const": "model"}),
        "ModelList": _object(
            ["object", "data"], object={"const": "list"}, data={"type": "array", "items": _ref("Model")}
        ),
        "InferenceError": _object(
            ["error"],
            error=_object(
                ["message", "type"],
                message={"type": "string"},
                type={"type": "string"},
                param={"type": ["string", "null"]},
                code={"type": ["string", "integer", "null"]},
            ),
        ),
    }


def _completion() -> Schema:
    return _object(
        ["id", "model", "choices"],
        id={"type": "string"},
        model={"type": "string", "description": "What was asked for"},
        choices={"type": "array", "items": {"type": "object"}},
        usage=USAGE,
    )


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
