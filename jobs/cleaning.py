"""What is kept for a while only: ended jobs, expired files, and what a process that was killed has left on the disk."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from jobs.batches import results
from jobs.files.services import delete_expired_files, delete_orphans
from jobs.files.storage import ORPHAN_AFTER_S
from jobs.models import Batch, Job


def clean_up() -> None:
    delete_old_jobs()
    delete_expired_files()
    delete_orphans()
    delete_left_folders()


def delete_old_jobs() -> int:
    """Forget jobs that ended more than JOBS_KEEP_DAYS ago; returns how many."""
    old = Q(finished_at__lt=timezone.now() - timedelta(days=settings.JOBS_KEEP_DAYS))
    return Job.objects.filter(old).delete()[1].get("jobs.Job", 0)


def delete_left_folders() -> None:
    """Those of batches that have ended, or were never committed."""
    folder = results.folder_of("")
    if not folder.is_dir():
        return
    old = [entry.name for entry in os.scandir(folder) if entry.stat().st_mtime < time.time() - ORPHAN_AFTER_S]
    unfinished = Batch.objects.filter(public_id__in=old).exclude(job__state__in=Job.ENDED)
    for name in set(old) - set(unfinished.values_list("public_id", flat=True)):
        results.remove_folder(name)
