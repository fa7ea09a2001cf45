"""Jobs, files and batches as the API and the events show them. Times are Unix seconds, as OpenAI has them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs.models import Batch, Job, StoredFile


def stream_url(job: Job) -> str:
    return f"/events/{job.public_id}"


def job_shape(job: Job) -> dict[str, Any]:
    return {
        "id": job.public_id,
        "object": "job",
        "kind": job.kind,
        "state": job.state,
        "stream_url": stream_url(job),
        "model": job.inputs.get("model"),
        "revision": job.inputs.get("revision"),
        "progress": progress_shape(job.done, job.total, job.rate if job.state == Job.State.RUNNING else None),
        "attempts": job.attempts,
        "result": job.result,
        "error": job.error,
        "created_at": seconds(job.created_at),
        "started_at": seconds(job.started_at),
        "finished_at": seconds(job.finished_at),
        "cancel_requested_at": seconds(job.cancel_requested_at),
    }


def progress_shape(done: int, total: int, rate: float | None) -> dict[str, Any]:
    """`rate_per_s` is of the last minute, and None where nothing is being counted."""
    left_s = round((total - done) / rate, 1) if rate else None
    return {"done": done, "total": total, "rate_per_s": round(rate, 3) if rate else None, "seconds_left": left_s}


def file_shape(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.public_id,
        "object": "file",
        "bytes": file.size,
        "created_at": seconds(file.created_at),
        "expires_at": seconds(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_shape(batch: Batch) -> dict[str, Any]:
    job = batch.job
    status = batch_status(batch)
    ended_at = {state: seconds(job.finished_at) if status == state else None for state in _ENDS}
    wrong = job.error or {}
    whole = {"code": wrong.get("code"), "message": wrong.get("message"), "param": None, "line": None}
    return {
        "id": batch.public_id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": wrong.get("lines") or [whole]} if job.error else None,
        "input_file_id": batch.input_file_id_text,
        "completion_window": batch.completion_window,
        "status": status,
        "output_file_id": batch.output_file.public_id if batch.output_file else None,
        "error_file_id": batch.error_file.public_id if batch.error_file else None,
        "created_at": seconds(job.created_at),
        "in_progress_at": seconds(batch.in_progress_at),
        "expires_at": seconds(batch.expires_at),
        "finalizing_at": seconds(batch.finalizing_at),
        "completed_at": ended_at["completed"],
        "failed_at": ended_at["failed"],
        "expired_at": ended_at["expired"],
        "cancelling_at": seconds(job.cancel_requested_at),
        "cancelled_at": ended_at["cancelled"],
        "request_counts": {"total": job.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": batch.metadata,
        # Ours: where its progress can be watched.
        "job_id": job.public_id,
        "stream_url": stream_url(job),
    }


def batch_status(batch: Batch) -> str:
    """OpenAI's word for where a batch is."""
    job = batch.job
    match job.state:
        case Job.State.SUCCEEDED:
            return "expired" if batch.phase == Batch.Phase.EXPIRED else "completed"
        case Job.State.FAILED:
            return "failed"
        case Job.State.CANCELLED:
            return "cancelled"
    return "cancelling" if job.cancel_requested_at else batch.phase


_ENDS = ("completed", "failed", "expired", "cancelled")


def seconds(at: datetime | None) -> int | None:
    return int(at.timestamp()) if at is not None else None
