"""Every change to a job: submitted, taken by a worker, kept alive, cancelled, finished, cleaned up.

The row is committed first and the queue told afterwards, so what was acknowledged can't be lost; a message that never
reached the queue is made up for by `sweep`. A message says only that there is work: which job is next is decided by
the worker that hears it (jobs/dispatching.py), so nobody waits behind somebody else's thousand. A worker holds a job
by a lease that it renews; when the lease runs out another takes over, and `attempts` (the fencing token) keeps the
first from finishing what is no longer its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import redis
import structlog
from celery import current_app
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F, Min
from django.db.models.functions import Coalesce
from django.utils import timezone
from kombu.exceptions import OperationalError

from inference.gateway.errors import InvalidRequest
from jobs import events
from jobs.errors import IdempotencyKeyReused, JobFailed, TooManyJobs
from jobs.models import Job
from jobs.shapes import job_shape
from personas.changes import valkey
from personas.characters import UNSTORABLE
from personas.models import Tenant

log = structlog.get_logger("jobs")

RUN_TASK = "jobs.tasks.run_next"

MAX_ATTEMPTS = 5  # in vain, one after another: a job that takes its worker down with it ends at some point
MAX_IDEMPOTENCY_KEY_CHARS = 255
MAX_MESSAGES_PER_SWEEP = 20
MAX_IDS_PER_QUERY = 500
LEASE_FIELDS = ("pk", "attempts", "cancel_requested_at")

LeaseState = Literal["held", "cancelled", "lost"]


def queue_of(kind: str) -> str:
    """The Celery queue that jobs of `kind` are announced on."""
    return {Job.Kind.GENERATION: "generation", Job.Kind.BATCH: "batch"}[Job.Kind(kind)]


def submit(
    *,
    tenant: str,
    key_prefix: str,
    kind: Job.Kind,
    inputs: Mapping[str, Any],
    idempotency_key: str | None = None,
    request: Mapping[str, Any] | None = None,
    also: Callable[[Job], None] | None = None,
) -> tuple[Job, bool]:
    """A queued job, committed, and whether it is new; `tenant` is a slug.

    The same `idempotency_key` gives the same job again, if `request` (what the client asked; `inputs` otherwise) is
    the same. `also` runs in the transaction that makes the job. Raises InvalidRequest, IdempotencyKeyReused,
    TooManyJobs.
    """
    check_idempotency_key(idempotency_key)
    digest = _digest(inputs if request is None else request)
    owner = Tenant.objects.get(slug=tenant)
    if (known := _find_known(owner, kind, idempotency_key, digest)) is not None:
        return known, False
    if owner.jobs.exclude(state__in=Job.ENDED).count() >= settings.JOBS_MAX_UNFINISHED:
        raise TooManyJobs(settings.JOBS_MAX_UNFINISHED)
    try:
        with transaction.atomic():
            job = Job.objects.create(
                tenant=owner,
                key_prefix=key_prefix,
                kind=kind,
                inputs=dict(inputs),
                idempotency_key=idempotency_key,
                request_digest=digest,
            )
            if also is not None:
                also(job)
            transaction.on_commit(lambda: _announce(job), robust=True)
    except IntegrityError:
        # The same key at the same time: the other request was first.
        if (known := _find_known(owner, kind, idempotency_key, digest)) is None:
            raise
        return known, False
    return job, True


def idempotency_key_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What a request's header says. Raises InvalidRequest."""
    key = next((value.decode("latin-1") for name, value in headers if name == b"idempotency-key"), None)
    check_idempotency_key(key)
    return key


def check_idempotency_key(key: str | None) -> None:
    """Raises InvalidRequest."""
    if key is not None and (not 0 < len(key) <= MAX_IDEMPOTENCY_KEY_CHARS or UNSTORABLE.search(key)):
        raise InvalidRequest(
            f"'Idempotency-Key' must have 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters.", param="Idempotency-Key"
        )


def _find_known(owner: Tenant, kind: Job.Kind, key: str | None, digest: str) -> Job | None:
    if key is None:
        return None
    job = owner.jobs.filter(kind=kind, idempotency_key=key).first()
    if job is not None and job.request_digest != digest:
        raise IdempotencyKeyReused
    return job


def _digest(request: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _announce(job: Job) -> None:
    events.append(job, "queued", job_shape(job))
    call_worker(job.kind)


def call_worker(kind: str) -> None:
    """Put a message on the queue of `kind`. One that can't be put there is made up for by `sweep`."""
    try:
        current_app.send_task(RUN_TASK, args=[kind], queue=queue_of(kind))
    except (OperationalError, redis.RedisError, OSError) as error:
        log.warning("job not queued yet", kind=kind, error=str(error))


def find_waiting() -> list[tuple[str, str]]:
    """Tenant's slug and kind of whatever could be taken now, each once, whose oldest job is oldest first."""
    claimable = Job.objects.claimable(timezone.now()).order_by()
    waiting = claimable.values("tenant__slug", "kind").annotate(oldest=Min("created_at")).order_by("oldest")
    return [(row["tenant__slug"], row["kind"]) for row in waiting]


def claim_next(kind: str, tenant: str) -> Job | None:
    """The tenant's oldest job that waits, now this worker's for a lease; None when there is nothing to do."""
    while (found := _find_next(kind, tenant, now := timezone.now())) is not None:
        if found.cancel_requested_at is not None and not found.keeps_parts:
            end_abandoned(found, Job.State.CANCELLED)
        elif found.attempts - found.fruitful_attempt >= MAX_ATTEMPTS:
            lost = JobFailed("worker_lost", f"The worker ended {MAX_ATTEMPTS} times while it ran this job.")
            end_abandoned(found, Job.State.FAILED, error=lost.as_json())
        elif _as_it_was(found, now).update(
            state=Job.State.RUNNING,
            attempts=F("attempts") + 1,
            lease_until=now + lease(),
            started_at=Coalesce(F("started_at"), now),
        ):
            return Job.objects.select_related("tenant").get(pk=found.pk)
    return None


def _find_next(kind: str, tenant: str, now: datetime) -> Job | None:
    waiting = Job.objects.claimable(now).filter(kind=kind, tenant__slug=tenant)
    return waiting.order_by("created_at", "pk").first()


def _as_it_was(job: Job, now: datetime) -> Any:
    """The row, if nobody has taken it meanwhile."""
    return Job.objects.claimable(now).filter(pk=job.pk, attempts=job.attempts)


def end_abandoned(job: Job, state: Job.State, *, error: Mapping[str, Any] | None = None) -> bool:
    """End a job that no worker holds."""
    now = timezone.now()
    ended = _as_it_was(job, now).update(state=state, error=error, finished_at=now, lease_until=None)
    if ended:
        _tell_end(job)
    return bool(ended)


def lease() -> timedelta:
    """For how long a worker that says nothing is believed to be alive."""
    return timedelta(seconds=settings.JOBS_LEASE_S)


def look_at_leases(jobs: Sequence[Job]) -> dict[int, LeaseState]:
    """What a worker has to know of the jobs that it runs, by their `pk`."""
    found: dict[int, tuple[int, datetime | None]] = {}
    for start in range(0, len(jobs), MAX_IDS_PER_QUERY):
        pks = [job.pk for job in jobs[start : start + MAX_IDS_PER_QUERY]]
        rows = Job.objects.filter(pk__in=pks, state=Job.State.RUNNING)
        found |= {pk: (attempts, asked) for pk, attempts, asked in rows.values_list(*LEASE_FIELDS)}
    return {job.pk: _state_of(job, *found.get(job.pk, (0, None))) for job in jobs}


def _state_of(job: Job, attempts: int, cancel_requested_at: datetime | None) -> LeaseState:
    if attempts != job.attempts:
        return "lost"
    return "held" if cancel_requested_at is None else "cancelled"


def renew_leases(jobs: Sequence[Job]) -> None:
    """Those that are still this worker's."""
    until = timezone.now() + lease()
    by_attempts: dict[int, list[int]] = {}
    for job in jobs:
        by_attempts.setdefault(job.attempts, []).append(job.pk)
    for attempts, pks in by_attempts.items():
        for start in range(0, len(pks), MAX_IDS_PER_QUERY):
            held = Job.objects.filter(pk__in=pks[start : start + MAX_IDS_PER_QUERY], state=Job.State.RUNNING)
            held.filter(attempts=attempts).update(lease_until=until)


def give_back(job: Job) -> None:
    """Let the next worker have the job at once, because this one ends as it was told to."""
    past = timezone.now() - timedelta(seconds=1)
    if _held(job).update(lease_until=past, fruitful_attempt=job.attempts):
        call_worker(job.kind)


def note_progress(
    job: Job, *, done: int, total: int, rate: float | None = None, also: Callable[[], None] | None = None
) -> bool:
    """Whether the job is still this worker's; `also` runs in the same transaction if it is."""
    with transaction.atomic():
        held = _held(job).update(done=done, total=total, rate=rate, fruitful_attempt=job.attempts)
        if held and also is not None:
            also()
    return bool(held)


def finish(
    job: Job,
    state: Job.State,
    *,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
    also: Callable[[], None] | None = None,
) -> bool:
    """End a job that this worker holds; False when it has lost it, and nothing has changed then.

    `also` runs in the same transaction, after the fence.
    """
    changes: dict[str, Any] = {"state": state, "result": result, "error": error}
    if state == Job.State.SUCCEEDED:
        changes["done"] = F("total")
    with transaction.atomic():
        if not _held(job).update(**changes, finished_at=timezone.now(), lease_until=None):
            return False
        if also is not None:
            also()
    _tell_end(job)
    return True


def _held(job: Job) -> Any:
    return Job.objects.filter(pk=job.pk, state=Job.State.RUNNING, attempts=job.attempts)


def cancel(job: Job) -> Job:
    """Ask for the end of a job: at once where no worker has it, else within a second or two. Again changes nothing."""
    now = timezone.now()
    unended = Job.objects.filter(pk=job.pk).exclude(state__in=Job.ENDED)
    if unended.filter(cancel_requested_at=None).update(cancel_requested_at=now):
        current = Job.objects.get(pk=job.pk)
        if not current.keeps_parts:
            end_abandoned(current, Job.State.CANCELLED)
    return Job.objects.select_related("tenant").get(pk=job.pk)


def _tell_end(job: Job) -> None:
    ended = Job.objects.get(pk=job.pk)
    events.append(ended, ended.state, job_shape(ended))


def sweep() -> None:
    """Make up for messages that were lost: as many on each queue as jobs that could be taken now."""
    now = timezone.now()
    for kind in Job.Kind.values:
        claimable = Job.objects.claimable(now).filter(kind=kind)
        for job in claimable.exclude(cancel_requested_at=None)[:MAX_IDS_PER_QUERY]:
            if not job.keeps_parts:
                end_abandoned(job, Job.State.CANCELLED)
        if (waiting := claimable.count()) == 0:
            continue
        queued = int(valkey().llen(queue_of(kind)))  # type: ignore[arg-type]  # typed for both clients at once
        # One rings one worker, and one that is full goes on by itself: enough for all that may be there.
        for _ in range(min(waiting, MAX_MESSAGES_PER_SWEEP) - queued):
            call_worker(kind)
