"""Every change to a batch: made, in progress, ended. Its job's state and its lease are jobs/services.py's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from jobs import services
from jobs.batches import results
from jobs.errors import UnknownObject
from jobs.files.services import make_row
from jobs.files.storage import Draft
from jobs.models import Batch, Job, StoredFile

COMPLETION_WINDOWS = {"24h": timedelta(hours=24)}


def create_batch(
    *,
    tenant: str,
    key_prefix: str,
    input_file: StoredFile,
    endpoint: str,
    completion_window: str,
    metadata: Mapping[str, str] | None,
    output_expires_after_s: int | None,
    idempotency_key: str | None,
    request: Mapping[str, Any],
) -> Batch:
    """A queued one, or the one that the idempotency key has made before.

    Raises UnknownObject where the file was deleted meanwhile, and what jobs.services.submit does.
    """
    made: list[Batch] = []

    def also(job: Job) -> None:
        batch = Batch.objects.create(
            job=job,
            endpoint=endpoint,
            completion_window=completion_window,
            metadata=metadata,
            input_file=input_file,
            input_file_id_text=input_file.public_id,
            output_expires_after_s=output_expires_after_s,
            expires_at=job.created_at + COMPLETION_WINDOWS[completion_window],
        )
        made.append(batch)
        job.total = 0  # nobody has counted yet
        job.save(update_fields=["total"])
        results.make_folder(batch.public_id, input_file.storage_name)

    is_new = False
    try:
        job, is_new = services.submit(
            tenant=tenant,
            key_prefix=key_prefix,
            kind=Job.Kind.BATCH,
            inputs={"endpoint": endpoint},
            idempotency_key=idempotency_key,
            request=request,
            also=also,
        )
    except FileNotFoundError:
        raise UnknownObject("file", input_file.public_id) from None
    finally:
        if not is_new:
            for batch in made:
                results.remove_folder(batch.public_id)
    return Batch.objects.of_tenant(tenant).get(job=job)


def load_batch(job: Job) -> Batch:
    return Batch.objects.of_tenant(job.tenant.slug).get(job=job)


def begin_asking(batch: Batch, job: Job, *, total: int, completed: int, failed: int) -> bool:
    """The file has been checked. Whether the job is still this worker's, here and below."""
    entered = partial(_enter, batch, Batch.Phase.IN_PROGRESS, "in_progress_at")
    return note_counts(batch, job, total=total, completed=completed, failed=failed, also=entered)


def note_counts(
    batch: Batch,
    job: Job,
    *,
    total: int,
    completed: int,
    failed: int,
    rate: float | None = None,
    also: Any = None,
) -> bool:
    def note() -> None:
        Batch.objects.filter(pk=batch.pk).update(completed=completed, failed=failed)
        if also is not None:
            also()

    return services.note_progress(job, done=completed + failed, total=total, rate=rate, also=note)


def begin_finalizing(batch: Batch, job: Job, *, total: int, completed: int, failed: int) -> bool:
    entered = partial(_enter, batch, Batch.Phase.FINALIZING, "finalizing_at")
    return note_counts(batch, job, total=total, completed=completed, failed=failed, also=entered)


def _enter(batch: Batch, phase: Batch.Phase, moment: str) -> None:
    Batch.objects.filter(pk=batch.pk).update(phase=phase)
    # When it first happened, whoever does it again.
    now: datetime = timezone.now()
    Batch.objects.filter(pk=batch.pk, **{moment: None}).update(**{moment: now})


def finish_batch(
    batch: Batch,
    job: Job,
    state: Job.State,
    *,
    expired: bool = False,
    completed: int = 0,
    failed: int = 0,
    output: Draft | None = None,
    errors: Draft | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """End it, with its files, or leave nothing of them where another worker has it."""
    result: dict[str, Any] = {"batch_id": batch.public_id}
    committed: list[bool] = []

    def also() -> None:
        transaction.on_commit(lambda: committed.append(True))
        changes: dict[str, Any] = {"completed": completed, "failed": failed}
        if expired:
            changes["phase"] = Batch.Phase.EXPIRED
        for name, draft in (("output_file", output), ("error_file", errors)):
            if draft is not None:
                changes[name] = _make_file(batch, job, name, draft)
        Batch.objects.filter(pk=batch.pk).update(**changes)
        ids = {f"{name}_id": changes[name].public_id for name in ("output_file", "error_file") if name in changes}
        Job.objects.filter(pk=job.pk).update(result=result | ids)

    try:
        return services.finish(job, state, error=error, also=also)
    finally:
        if committed:
            results.remove_folder(batch.public_id)
        else:
            for draft in (output, errors):
                if draft is not None:
                    draft.discard()


def _make_file(batch: Batch, job: Job, name: str, draft: Draft) -> StoredFile:
    return make_row(
        job.tenant,
        job.key_prefix,
        StoredFile.Purpose.BATCH_OUTPUT,
        f"{batch.public_id}_{name.removesuffix('_file')}.jsonl",
        draft,
        batch.output_expires_after_s,
    )
