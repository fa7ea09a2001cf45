"""The vectors' files under DATA_DIR/vectors, named by digest: the same numbers are stored once for everybody.

A row may appear for a digest while the last other row for it goes away, in two processes, and neither may
lose the file. So a file is put back if it is missing once its row is committed (`ensure`), and is moved aside
before the rows are counted and put back if there is one after all (`remove_unused`).
"""

import contextlib
import os
import tempfile
from pathlib import Path

from django.conf import settings

from personas.models import SteeringVector


def path_of(digest: str) -> Path:
    return Path(settings.DATA_DIR) / "vectors" / f"{digest}.safetensors"


def ensure(digest: str, data: bytes) -> None:
    """Write the file, unless it is there; a reader never sees half of one."""
    path = path_of(digest)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=".draft-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def remove_unused(digest: str) -> None:
    """Remove the file, unless a row still needs it. To be called after the commit."""
    path = path_of(digest)
    aside = path.with_name(f".removed-{os.getpid()}-{path.name}")
    try:
        os.replace(path, aside)
    except FileNotFoundError:
        return
    if SteeringVector.objects.filter(digest=digest).exists():
        os.replace(aside, path)
    else:
        aside.unlink()
