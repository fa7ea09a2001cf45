"""Where an uploaded adapter's two files come from: a folder, a zip or a tar, of which nothing is believed.

Out of an archive only the two files are written, under names of ours, into a folder that is made for them; everything
else in it is counted and its names are checked, but it is never unpacked.
"""

import contextlib
import gzip
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steerguard.adapters import tar_archive, zip_archive
from steerguard.adapters.archive import (
    INTERESTING,
    LIMITS,
    MAX_RATIO,
    MAX_TOTAL_BYTES,
    RATIO_FREE_BYTES,
    WEIGHTS_FILE,
    check_presence,
    copy_bounded,
)
from steerguard.adapters.config import CONFIG_FILE
from steerguard.adapters.problems import Problems

EXPECTED = "a folder, .zip, .tar or .tar.gz with the adapter's two files"


@dataclass(frozen=True)
class AdapterFiles:
    """The two files, as far as they are there and fit to be read."""

    config: Path | None
    weights: Path | None


@contextlib.contextmanager
def open_source(path: Path, problems: Problems, *, scratch: Path | None = None) -> Iterator[AdapterFiles]:
    """The files of a folder or an archive, with what is wrong with it added to `problems`.

    What comes out of an archive lies in a folder below `scratch` (default: the system's), readable by its owner only
    and removed in the end.
    """
    if path.is_dir():
        yield _of_folder(path, problems)
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="steerguard-adapter-", dir=scratch) as folder:
            yield _of_archive(path, Path(folder), problems)
    else:
        problems.add("path", EXPECTED, "nothing there" if not path.exists() else "neither")
        yield AdapterFiles(None, None)


def _of_folder(folder: Path, problems: Problems) -> AdapterFiles:
    present = sorted(name for name in INTERESTING if os.path.lexists(folder / name))
    check_presence(present, problems)
    usable = {}
    for name in LIMITS:
        if name in present:
            mode = (folder / name).lstat().st_mode
            if stat.S_ISREG(mode):
                usable[name] = folder / name
            else:
                problems.add(name, "a regular file", "a link" if stat.S_ISLNK(mode) else "another kind of file")
    return AdapterFiles(usable.get(CONFIG_FILE), usable.get(WEIGHTS_FILE))


def _of_archive(path: Path, folder: Path, problems: Problems) -> AdapterFiles:
    with path.open("rb") as file:
        start = file.read(4)
    if start[:2] == b"\x1f\x8b":
        unpacked = folder / "unpacked.tar"
        if _gunzip(path, unpacked, problems):
            tar_archive.extract(unpacked, folder, problems)
        unpacked.unlink(missing_ok=True)
    elif start[:2] == b"PK":
        zip_archive.extract(path, folder, problems)
    else:
        tar_archive.extract(path, folder, problems)
    usable = {name: folder / name for name in LIMITS if (folder / name).exists()}
    return AdapterFiles(usable.get(CONFIG_FILE), usable.get(WEIGHTS_FILE))


def _gunzip(path: Path, target: Path, problems: Problems) -> bool:
    most = min(MAX_TOTAL_BYTES, max(MAX_RATIO * path.stat().st_size, RATIO_FREE_BYTES))
    try:
        with gzip.open(path) as source:
            if not copy_bounded(source, target, most):
                problems.add("archive", f"at most {most} bytes when unpacked", "more")
                return False
    except (OSError, EOFError, zlib.error) as error:
        problems.add("archive", "a whole gzip file", str(error)[:120])
        return False
    return True
