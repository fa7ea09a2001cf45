"""The job API's part of the OpenAPI document, by hand as the rest of the gateway's (inference/api/openapi.py)."""

from __future__ import annotations

from typing import Any

from inference.api.openapi import FAILURES, MODEL, SAMPLING, SECURITY, STEERING
from jobs.models import Job

Schema = dict[str, Any]

TAG = "jobs"
ID: Schema = {"in": "path", "name": "id", "required": True, "schema": {"type": "string"}, "description": "`job_…`"}
DESCRIBED = {**FAILURES, "404": "There is no such job for this key.", "422": "The Idempotency-Key was used before."}
READ = ["400", "401", "403", "404", "429", "503"]

EXAMPLE: Schema = {
    "id": "job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "object": "job",
    "kind": "generation",
    "state": "queued",
    "stream_url": "/events/job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "model": "support",
    "revision": "acme/support@7",
    "progress": {"done": 0, "total": 1},
    "attempts": 0,
    "result": None,
    "error": None,
    "created_at": 1764579600,
    "started_at": None,
    "finished_at": None,
    "cancel_requested_at": None,
}


def add_job_paths(result: Schema, generator: object, request: object, public: bool) -> Schema:
    """A drf-spectacular postprocessing hook."""
    result["components"]["schemas"] |= _schemas()
    result["paths"] |= _paths()
    return result


def _paths() -> Schema:
    body = {"persona": "support", "prompt": "Dear customer,", "max_tokens": 40}
    create = _operation("create_job", "Have an answer made in the background", "Job", [*DESCRIBED], EXAMPLE) | {
        "parameters": [_header("Idempotency-Key", "The same key and body give the same job again")],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("JobRequest"), "example": body}},
        },
    }
    page = [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}, "How many"),
        _query("after", {"type": "string"}, "The `id` of the last job of the page before"),
    ]
    return {
        "/v1/jobs": {
            "get": _operation("list_jobs", "The newest jobs first", "JobList", READ) | {"parameters": page},
            "post": create,
        },
        "/v1/jobs/{id}": {
            "get": _operation("get_job", "A job, and its result", "Job", READ, EXAMPLE) | {"parameters": [ID]},
            "delete": _operation("cancel_job", "Cancel a job that has not ended", "Job", READ) | {"parameters": [ID]},
        },
        "/events/{id}": {"get": _watch()},
    }


def _watch() -> Schema:
    described = _operation("watch_job", "Watch a job", "Job", READ) | {
        "parameters": [ID, _header("Last-Event-ID", "Only what came after the event with this id")],
    }
    stream = {"schema": {"type": "string", "description": "`id:`, `event:` and `data:`; the last event tells the end"}}
    described["responses"]["200"]["content"] = {"text/event-stream": stream}
    described["responses"]["204"] = {"description": "`Last-Event-ID` is the last event there is"}
    return described


def _operation(name: str, summary: str, gives: str, failures: list[str], example: Schema | None = None) -> Schema:
    failed = {
        status: {"description": DESCRIBED[status], "content": {"application/json": {"schema": _ref("InferenceError")}}}
        for status in failures
    }
    content = {"schema": _ref(gives)} | ({"example": example} if example is not None else {})
    return {
        "operationId": name,
        "summary": summary,
        "description": summary,
        "tags": [TAG],
        "security": SECURITY,
        "responses": {"200": {"description": "The answer", "content": {"application/json": content}}, **failed},
    }


def _schemas() -> Schema:
    names = {name: MODEL for name in ("persona", "adapter", "model")}
    time: Schema = {"type": ["integer", "null"], "description": "Unix seconds"}
    said: Schema = {"type": ["object", "null"]}
    text: Schema = {"type": ["string", "null"]}
    job: Schema = {
        "id": {"type": "string"},
        "object": {"const": "job"},
        "kind": {"enum": [*Job.Kind.values]},
        "state": {"enum": [*Job.State.values]},
        "stream_url": {"type": "string"},
        "model": text,
        "revision": text,
        "progress": {"type": "object", "properties": {name: {"type": "integer"} for name in ("done", "total")}},
        "attempts": {"type": "integer"},
        "result": {**said, "description": "The answer, in the shape of the endpoint's"},
        "error": {**said, "properties": {"code": {"type": "string"}, "message": {"type": "string"}}},
        **{name: time for name in ("created_at", "started_at", "finished_at", "cancel_requested_at")},
    }
    prompt: Schema = {"type": ["string", "array"], "items": {}}
    messages: Schema = {"type": "array", "items": {"type": "object"}}
    asked = {**names, "prompt": prompt, "messages": messages, **SAMPLING, **STEERING}
    jobs: Schema = {"type": "array", "items": _ref("Job")}
    listed: Schema = {"object": {"const": "list"}, "data": jobs, "has_more": {"type": "boolean"}}
    return {
        "JobRequest": {
            "type": "object",
            "description": "One of `persona`, `adapter` and `model`, and one of `prompt` and `messages`",
            "properties": asked,
        },
        "Job": {"type": "object", "required": ["id", "object", "state", "stream_url"], "properties": job},
        "JobList": {"type": "object", "required": ["object", "data", "has_more"], "properties": listed},
    }


def _header(name: str, description: str) -> Schema:
    return {"in": "header", "name": name, "schema": {"type": "string"}, "description": description}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"in": "query", "name": name, "schema": schema, "description": description}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
