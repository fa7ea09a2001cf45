"""What of a tenant's a key may see. Everything about a job, file or batch that a request names goes through here.

It is the tenant's; a key that may ask some personas only sees what it made itself.
"""

from __future__ import annotations

from inference.gateway.directory import Key
from jobs.models import Batch, BatchQuerySet, Job, JobQuerySet, StoredFile, StoredFileQuerySet


def jobs_of(key: Key) -> JobQuerySet:
    jobs = Job.objects.of_tenant(key.tenant).select_related("tenant")
    return jobs if key.personas is None else jobs.filter(key_prefix=key.prefix)


def files_of(key: Key) -> StoredFileQuerySet:
    files = StoredFile.objects.of_tenant(key.tenant)
    return files if key.personas is None else files.filter(key_prefix=key.prefix)


def batches_of(key: Key) -> BatchQuerySet:
    batches = Batch.objects.of_tenant(key.tenant)
    return batches if key.personas is None else batches.filter(job__key_prefix=key.prefix)


def find_visible(key: Key, public_id: str) -> Job | None:
    return jobs_of(key).filter(public_id=storable(public_id)).first()


def find_file(key: Key, public_id: str) -> StoredFile | None:
    return files_of(key).filter(public_id=storable(public_id)).first()


def find_batch(key: Key, public_id: str) -> Batch | None:
    return batches_of(key).filter(public_id=storable(public_id)).first()


def storable(public_id: str) -> str:
    """PostgreSQL refuses even to look for a NUL."""
    return public_id.replace("\0", "")[:100]
