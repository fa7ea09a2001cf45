"""The part of the OpenAPI document that files and batches have: OpenAI's own shapes, as far as they are served here."""

from __future__ import annotations

from typing import Any

from jobs.batches.input import ENDPOINTS
from jobs.batches.services import COMPLETION_WINDOWS
from jobs.files.upload import EXPIRES_AFTER_S
from jobs.models import StoredFile

Schema = dict[str, Any]

STATUSES = ("validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled")

FILE_EXAMPLE: Schema = {
    "id": "file-0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "object": "file",
    "bytes": 176,
    "created_at": 1764579600,
    "expires_at": 1767171600,
    "filename": "letters.jsonl",
    "purpose": "batch",
    "status": "processed",
}
BATCH_EXAMPLE: Schema = {
    "id": "batch_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "object": "batch",
    "endpoint": "/v1/chat/completions",
    "errors": None,
    "input_file_id": FILE_EXAMPLE["id"],
    "completion_window": "24h",
    "status": "in_progress",
    "output_file_id": None,
    "error_file_id": None,
    "created_at": 1764579600,
    "in_progress_at": 1764579601,
    "expires_at": 1764666000,
    "finalizing_at": None,
    "completed_at": None,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 10000, "completed": 4120, "failed": 3},
    "metadata": {"campaign": "spring"},
    "job_id": "job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "stream_url": "/events/job_0f1e2d3c4b5a69788796a5b4c3d2e1f0",
}

_TIME: Schema = {"type": ["integer", "null"], "description": "Unix seconds"}
_TEXT: Schema = {"type": ["string", "null"]}
_ANCHOR: Schema = {"enum": ["created_at"]}
_SECONDS: Schema = {"type": "integer", "minimum": EXPIRES_AFTER_S[0], "maximum": EXPIRES_AFTER_S[-1]}


def upload_body() -> Schema:
    form = {
        "type": "object",
        "required": ["purpose", "file"],
        "properties": {
            "purpose": {"enum": ["batch"]},
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "expires_after[anchor]": _ANCHOR,
            "expires_after[seconds]": _SECONDS,
        },
    }
    return {"required": True, "content": {"multipart/form-data": {"schema": form}}}


def batch_body() -> Schema:
    example = {"input_file_id": FILE_EXAMPLE["id"], "endpoint": ENDPOINTS[0], "completion_window": "24h"}
    schema = {"$ref": "#/components/schemas/BatchRequest"}
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}


def schemas() -> Schema:
    file: Schema = {
        "id": {"type": "string"},
        "object": {"const": "file"},
        "bytes": {"type": "integer"},
        "created_at": _TIME,
        "expires_at": _TIME,
        "filename": {"type": "string"},
        "purpose": {"enum": [*StoredFile.Purpose.values]},
        "status": {"const": "processed"},
    }
    deleted: Schema = {"id": {"type": "string"}, "object": {"const": "file"}, "deleted": {"const": True}}
    expires: Schema = {"type": ["object", "null"], "properties": {"anchor": _ANCHOR, "seconds": _SECONDS}}
    metadata: Schema = {
        "type": ["object", "null"],
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 512},
    }
    asked: Schema = {
        "input_file_id": {"type": "string"},
        "endpoint": {"enum": [*ENDPOINTS]},
        "completion_window": {"enum": [*COMPLETION_WINDOWS]},
        "metadata": metadata,
        "output_expires_after": expires,
    }
    return {
        "File": {"type": "object", "required": list(file), "properties": file},
        "FileDeleted": {"type": "object", "required": list(deleted), "properties": deleted},
        "FileList": _list("File"),
        "BatchRequest": {
            "type": "object",
            "required": ["input_file_id", "endpoint", "completion_window"],
            "additionalProperties": False,
            "properties": asked,
        },
        "Batch": {"type": "object", "required": ["id", "object", "status"], "properties": _batch(asked)},
        "BatchList": _list("Batch"),
    }


def _batch(asked: Schema) -> Schema:
    moments = (
        "created_at",
        "in_progress_at",
        "expires_at",
        "finalizing_at",
        "completed_at",
        "failed_at",
        "expired_at",
        "cancelling_at",
        "cancelled_at",
    )
    error: Schema = {"code": _TEXT, "message": _TEXT, "param": _TEXT, "line": {"type": ["integer", "null"]}}
    errors: Schema = {"type": "array", "items": {"type": "object", "properties": error}}
    counts: Schema = {name: {"type": "integer"} for name in ("total", "completed", "failed")}
    return {
        "id": {"type": "string"},
        "object": {"const": "batch"},
        **{name: asked[name] for name in ("endpoint", "input_file_id", "completion_window", "metadata")},
        "status": {"enum": [*STATUSES]},
        "errors": {"type": ["object", "null"], "properties": {"object": {"const": "list"}, "data": errors}},
        "output_file_id": _TEXT,
        "error_file_id": _TEXT,
        **{name: _TIME for name in moments},
        "request_counts": {"type": "object", "properties": counts},
        "job_id": {"type": "string", "description": "Its job, at `/v1/jobs/{id}`"},
        "stream_url": {"type": "string", "description": "Where its progress can be watched"},
    }


def _list(name: str) -> Schema:
    listed: Schema = {
        "object": {"const": "list"},
        "data": {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}},
        "first_id": _TEXT,
        "last_id": _TEXT,
        "has_more": {"type": "boolean"},
    }
    return {"type": "object", "required": ["object", "data", "has_more"], "properties": listed}
