"""Durable work and what it reads and writes. The row is the truth; the queue only says that there is work.

Nothing is looked up from outside but by its public id, inside `of_tenant` or `visible_to`.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

from jobs.fields import JSONText
from personas.models import AnyUser, Tenant

ID_BYTES = 16  # unguessable: an id is no password, but it shouldn't be a counter either


def make_job_id() -> str:
    return f"job_{secrets.token_hex(ID_BYTES)}"


def make_file_id() -> str:
    return f"file-{secrets.token_hex(ID_BYTES)}"


def make_batch_id() -> str:
    return f"batch_{secrets.token_hex(ID_BYTES)}"


class JobQuerySet(models.QuerySet["Job"]):
    def of_tenant(self, slug: str) -> JobQuerySet:
        return self.filter(tenant__slug=slug)

    def visible_to(self, user: AnyUser) -> JobQuerySet:
        """The jobs of the tenants that `user` is a member of."""
        return self.filter(tenant__in=Tenant.objects.visible_to(user))

    def claimable(self, now: datetime) -> JobQuerySet:
        """Waiting, or left behind by a worker whose lease has run out."""
        abandoned = Q(state=Job.State.RUNNING, lease_until__lt=now)
        return self.filter(Q(state=Job.State.QUEUED) | abandoned)


class Job(models.Model):
    """One piece of background work, of a tenant's.

    `state` only moves forward, by conditional UPDATEs in jobs/services.py. `attempts` counts the workers that took the
    job and is the fencing token: what an earlier one still writes is refused.
    """

    class Kind(models.TextChoices):
        GENERATION = "generation"  # one answer, streamed
        BATCH = "batch"  # a file of requests

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)

    public_id = models.CharField(max_length=40, unique=True, default=make_job_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="jobs")
    key_prefix = models.CharField(max_length=8, blank=True, help_text="The API key that asked, and that is charged")
    kind = models.CharField(max_length=20, choices=Kind.choices)
    state = models.CharField(max_length=10, choices=State.choices, default=State.QUEUED)
    inputs = JSONText(default=dict)
    result = JSONText(null=True, blank=True)
    error = JSONText(null=True, blank=True, help_text="code and message")
    done = models.PositiveBigIntegerField(default=0)
    total = models.PositiveBigIntegerField(default=1)
    idempotency_key = models.CharField(max_length=255, null=True, blank=True)  # noqa: DJ001  # null is unique to many
    request_digest = models.CharField(max_length=64, blank=True, help_text="What the idempotency key was used for")

    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    fruitful_attempt = models.PositiveIntegerField(default=0, help_text="The last one that got anything done")
    lease_until = models.DateTimeField(null=True, blank=True)
    rate = models.FloatField(null=True, blank=True, help_text="Done per second, of late")

    objects = JobQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-created_at", "-pk"]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="job_by_tenant"),
            models.Index(fields=["kind", "state", "created_at"], name="job_by_state"),
            models.Index(fields=["finished_at"], name="job_by_end"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "kind", "idempotency_key"], name="one_job_per_idempotency_key"),
            models.CheckConstraint(
                name="ended_jobs_have_an_end",
                condition=Q(state__in=["succeeded", "failed", "cancelled"], finished_at__isnull=False)
                | Q(state__in=["queued", "running"], finished_at=None),
            ),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def has_ended(self) -> bool:
        return self.state in self.ENDED

    @property
    def keeps_parts(self) -> bool:
        """Whether what has been done of it outlives its cancellation, so that somebody has to put it together."""
        return self.kind == self.Kind.BATCH and self.started_at is not None


class StoredFileQuerySet(models.QuerySet["StoredFile"]):
    def of_tenant(self, slug: str) -> StoredFileQuerySet:
        """Those that are there: one that has expired is gone, whether or not it has been cleaned up."""
        return self.filter(tenant__slug=slug, expires_at__gt=timezone.now())


class StoredFile(models.Model):
    """A file in DATA_DIR/files, under a random name that says nothing of what it holds or whose it is."""

    class Purpose(models.TextChoices):
        BATCH = "batch"
        BATCH_OUTPUT = "batch_output"

    public_id = models.CharField(max_length=40, unique=True, default=make_file_id, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="files")
    key_prefix = models.CharField(max_length=8, blank=True, help_text="The API key that made it")
    purpose = models.CharField(max_length=20, choices=Purpose.choices)
    filename = models.CharField(max_length=255)
    size = models.PositiveBigIntegerField(help_text="bytes")
    storage_name = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()

    objects = StoredFileQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-created_at", "-pk"]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="file_by_tenant"),
            models.Index(fields=["expires_at"], name="file_by_expiry"),
        ]

    def __str__(self) -> str:
        return self.public_id


class BatchQuerySet(models.QuerySet["Batch"]):
    def of_tenant(self, slug: str) -> BatchQuerySet:
        return self.filter(job__tenant__slug=slug).select_related("job", "input_file", "output_file", "error_file")


class Batch(models.Model):
    """A file of requests in OpenAI's shape: what its job does not hold. `phase` is what a job's state lacks."""

    class Phase(models.TextChoices):
        VALIDATING = "validating"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        EXPIRED = "expired"

    public_id = models.CharField(max_length=40, unique=True, default=make_batch_id, editable=False)
    job = models.OneToOneField(Job, models.CASCADE, related_name="batch")
    phase = models.CharField(max_length=12, choices=Phase.choices, default=Phase.VALIDATING)
    endpoint = models.CharField(max_length=60)
    completion_window = models.CharField(max_length=10)
    metadata = JSONText(null=True, blank=True)
    input_file = models.ForeignKey(StoredFile, models.SET_NULL, null=True, related_name="+")
    input_file_id_text = models.CharField(max_length=40, help_text="Its public id, which outlives it")
    output_file = models.ForeignKey(StoredFile, models.SET_NULL, null=True, blank=True, related_name="+")
    error_file = models.ForeignKey(StoredFile, models.SET_NULL, null=True, blank=True, related_name="+")
    completed = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    output_expires_after_s = models.PositiveIntegerField(null=True, blank=True)
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)

    objects = BatchQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return self.public_id
