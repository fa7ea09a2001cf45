"""The content of files in DATA_DIR/files, each under a random name that says nothing of what it holds or whose it is.

A file is written aside and gets its name when it is whole and on the disk; then its row is made. Whatever has no
row after a day was left by a process that ended in between, and is removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from django.conf import settings

DRAFT_PREFIX = ".draft-"
ORPHAN_AFTER_S = 24 * 3600.0


def folder() -> Path:
    return Path(settings.DATA_DIR) / "files"


def path_of(storage_name: str) -> Path:
    return folder() / storage_name


class Draft:
    """A file that is being written; `keep` makes it one, and `discard` leaves nothing of it."""

    def __init__(self) -> None:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        self.storage_name = secrets.token_hex(16)
        self._path = folder() / f"{DRAFT_PREFIX}{self.storage_name}"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._file: IO[bytes] = open(descriptor, "wb")  # noqa: SIM115  # closed by either end
        self.size = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def keep(self) -> None:
        """On the disk, and under its name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._path, path_of(self.storage_name))
        sync_folder(folder())

    def discard(self) -> None:
        """Also of one that was kept."""
        self._file.close()
        for path in (self._path, path_of(self.storage_name)):
            path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk, too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(storage_names: Iterable[str]) -> None:
    """After the commit that removed the rows."""
    for name in storage_names:
        path_of(name).unlink(missing_ok=True)


def old_names() -> list[str]:
    """What lies in the folder for longer than any upload takes, drafts included."""
    found = []
    if folder().is_dir():
        for entry in os.scandir(folder()):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < time.time() - ORPHAN_AFTER_S:
                    found.append(entry.name)
    return found
