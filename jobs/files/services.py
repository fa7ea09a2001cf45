"""Every change to a file: stored, deleted, expired."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from jobs.errors import TooManyFiles
from jobs.files import storage
from jobs.models import StoredFile
from personas.models import Tenant


def keep_file(
    draft: storage.Draft,
    *,
    tenant: str,
    key_prefix: str,
    purpose: StoredFile.Purpose,
    filename: str,
    expires_after_s: int | None,
) -> StoredFile:
    """Make a file of `draft`, or leave nothing of it; `tenant` is a slug. Raises TooManyFiles."""
    try:
        draft.keep()
        with transaction.atomic():
            # The lock keeps two uploads from both taking the last of the room.
            owner = Tenant.objects.select_for_update().get(slug=tenant)
            check_room(stored_bytes(tenant), draft.size)
            return make_row(owner, key_prefix, purpose, filename, draft, expires_after_s)
    except BaseException:
        draft.discard()
        raise


def make_row(
    owner: Tenant,
    key_prefix: str,
    purpose: StoredFile.Purpose,
    filename: str,
    draft: storage.Draft,
    expires_after_s: int | None,
) -> StoredFile:
    now = timezone.now()
    lasts = timedelta(seconds=expires_after_s) if expires_after_s else timedelta(days=settings.FILES_KEEP_DAYS)
    return StoredFile.objects.create(
        tenant=owner,
        key_prefix=key_prefix,
        purpose=purpose,
        filename=filename,
        size=draft.size,
        storage_name=draft.storage_name,
        created_at=now,
        expires_at=now + lasts,
    )


def stored_bytes(tenant: str) -> int:
    """What the tenant's files take, those that have expired and lie there still included."""
    return StoredFile.objects.filter(tenant__slug=tenant).aggregate(total=Sum("size"))["total"] or 0


def check_room(stored: int, more: int) -> None:
    """Raises TooManyFiles."""
    if stored + more > settings.FILES_MAX_TENANT_BYTES:
        raise TooManyFiles(settings.FILES_MAX_TENANT_BYTES)


def delete_file(file: StoredFile) -> None:
    """A batch that reads it goes on: it has a name for the content of its own."""
    StoredFile.objects.filter(pk=file.pk).delete()
    storage.remove([file.storage_name])


def delete_expired_files() -> int:
    """Returns how many."""
    expired = list(StoredFile.objects.filter(expires_at__lte=timezone.now())[:1000])
    for file in expired:
        delete_file(file)
    return len(expired)


def delete_orphans() -> None:
    """Content without a row: a process ended between the two, or the tenant is gone."""
    old = storage.old_names()
    known = set(StoredFile.objects.filter(storage_name__in=old).values_list("storage_name", flat=True))
    storage.remove(name for name in old if name not in known)
