"""The job API's part of the OpenAPI document, by hand as the rest of the gateway's (inference/api/openapi.py)."""

from __future__ import annotations

from typing import Any

from inference.api.openapi import FAILURES, MODEL, SAMPLING, SECURITY, STEERING
from jobs.batches import openapi as batches
from jobs.models import Job, StoredFile

Schema = dict[str, Any]

TAG = "jobs"
DESCRIBED = {
    **FAILURES,
    "404": "There is no such job, file or batch for this key.",
    "408": "Nothing of the upload came for a minute.",
    "413": "The body, or all files together, are too large.",
    "422": "The Idempotency-Key was used before.",
}
READ = ["400", "401", "403", "404", "429", "503"]
ASK = [status for status in DESCRIBED if status != "408"]

EXAMPLE: Schema = {
    "id": "job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "object": "job",
    "kind": "generation",
    "state": "queued",
    "stream_url": "/events/job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "model": "support",
    "revision": "acme/support@7",
    "progress": {"done": 0, "total": 1, "rate_per_s": None, "seconds_left": None},
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
    create = _operation("create_job", "Have an answer made in the background", "Job", ASK, EXAMPLE) | {
        "parameters": [IDEMPOTENCY_KEY],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("JobRequest"), "example": body}},
        },
    }
    return {
        "/v1/jobs": {
            "get": _operation("list_jobs", "The newest jobs first", "JobList", READ) | {"parameters": _page("job")},
            "post": create,
        },
        "/v1/jobs/{id}": {
            "get": _of("job_…", "get_job", "A job, and its result", "Job", EXAMPLE),
            "delete": _of("job_…", "cancel_job", "Cancel a job that has not ended", "Job"),
        },
        "/events/{id}": {"get": _watch()},
        **_file_paths(),
        **_batch_paths(),
    }


def _file_paths() -> Schema:
    purpose = _query("purpose", {"enum": [*StoredFile.Purpose.values]}, "Only those of this purpose")
    sends = [status for status in DESCRIBED if status not in ("404", "422", "502")]
    content = _of("file-…", "get_file_content", "What a file holds", "File")
    content["responses"]["200"]["content"] = {"application/octet-stream": {"schema": {"type": "string"}}}
    return {
        "/v1/files": {
            "get": _operation("list_files", "The newest files first", "FileList", READ)
            | {"parameters": [*_page("file", 10_000, 10_000), purpose]},
            "post": _operation("create_file", "Upload requests", "File", sends, batches.FILE_EXAMPLE)
            | {"requestBody": batches.upload_body()},
        },
        "/v1/files/{id}": {
            "get": _of("file-…", "get_file", "A file", "File", batches.FILE_EXAMPLE),
            "delete": _of("file-…", "delete_file", "Delete a file", "FileDeleted"),
        },
        "/v1/files/{id}/content": {"get": content},
    }


def _batch_paths() -> Schema:
    return {
        "/v1/batches": {
            "get": _operation("list_batches", "The newest batches first", "BatchList", READ)
            | {"parameters": _page("batch")},
            "post": _operation("create_batch", "Have a file of requests answered", "Batch", ASK, batches.BATCH_EXAMPLE)
            | {"requestBody": batches.batch_body(), "parameters": [IDEMPOTENCY_KEY]},
        },
        "/v1/batches/{id}": {
            "get": _of("batch_…", "get_batch", "A batch", "Batch", batches.BATCH_EXAMPLE),
        },
        "/v1/batches/{id}/cancel": {
            "post": _of("batch_…", "cancel_batch", "Cancel a batch that has not ended", "Batch"),
        },
    }


def _watch() -> Schema:
    described = _of("job_…", "watch_job", "Watch a job", "Job")
    described["parameters"].append(_header("Last-Event-ID", "Only what came after the event with this id"))
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


def _of(id: str, name: str, summary: str, gives: str, example: Schema | None = None) -> Schema:
    """An operation on the one that the path names."""
    path = {"in": "path", "name": "id", "required": True, "schema": {"type": "string"}, "description": f"`{id}`"}
    return _operation(name, summary, gives, READ, example) | {"parameters": [path]}


def _page(noun: str, most: int = 100, usual: int = 20) -> list[Schema]:
    return [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": usual}, "How many"),
        _query("after", {"type": "string"}, f"The `id` of the last {noun} of the page before"),
        _query("order", {"enum": ["asc", "desc"], "default": "desc"}, "Oldest or newest first"),
    ]


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
        "progress": {"type": "object", "properties": _progress()},
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
        **batches.schemas(),
        "JobList": {"type": "object", "required": ["object", "data", "has_more"], "properties": listed},
    }


def _progress() -> Schema:
    counts: Schema = {name: {"type": "integer"} for name in ("done", "total")}
    return counts | {name: {"type": ["number", "null"]} for name in ("rate_per_s", "seconds_left")}


def _header(name: str, description: str) -> Schema:
    return {"in": "header", "name": name, "schema": {"type": "string"}, "description": description}


def _query(name: str, schema: Schema, description: str) -> Schema:
    return {"in": "query", "name": name, "schema": schema, "description": description}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


IDEMPOTENCY_KEY = _header("Idempotency-Key", "The same key and body give the same job again")
