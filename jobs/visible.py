"""Which jobs a key may see. Everything about a job that comes in by a path goes through here."""

from __future__ import annotations

from inference.gateway.directory import Key
from jobs.models import Job, JobQuerySet


def jobs_of(key: Key) -> JobQuerySet:
    """The tenant's; of a key that may ask some personas only, its own."""
    jobs = Job.objects.of_tenant(key.tenant).select_related("tenant")
    return jobs if key.personas is None else jobs.filter(key_prefix=key.prefix)


def find_visible(key: Key, public_id: str) -> Job | None:
    return jobs_of(key).filter(public_id=storable(public_id)).first()


def storable(public_id: str) -> str:
    """PostgreSQL refuses even to look for a NUL."""
    return public_id.replace("\0", "")[:100]
