"""Tar archives, read with Python's tarfile but never with its extract."""

import io
import struct
import tarfile
from pathlib import Path

from steerguard.adapters.archive import LIMITS, MAX_TOTAL_BYTES, PIECE_BYTES, Members, clean_name, copy_bounded
from steerguard.adapters.problems import Problems

_UNREADABLE = (tarfile.TarError, ValueError, OverflowError, EOFError, OSError, struct.error, KeyError, RecursionError)


class _Careful(io.FileIO):
    """Refuses to read much at once: tarfile reads as much as an extended header claims to be long."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= PIECE_BYTES:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size) or b""


def extract(path: Path, folder: Path, problems: Problems) -> None:
    """Writes the adapter's files into `folder`; what is wrong is added to `problems`."""
    if path.stat().st_size > MAX_TOTAL_BYTES:
        problems.add("archive", f"at most {MAX_TOTAL_BYTES} bytes", f"{path.stat().st_size}")
        return
    try:
        with _Careful(path) as file, tarfile.TarFile(fileobj=file, mode="r", errorlevel=2) as archive:
            _extract(archive, folder, problems)
    except _UNREADABLE as error:
        problems.add("archive", "a zip or tar that can be read", str(error)[:120] or type(error).__name__)


def _extract(archive: tarfile.TarFile, folder: Path, problems: Problems) -> None:
    members = Members(problems)
    infos: dict[str, tarfile.TarInfo] = {}
    while (info := archive.next()) is not None:
        if not members.admit(info.name, max(info.size, 0)):
            return
        if info.isdir():
            continue
        if not info.isreg() or info.sparse is not None:
            problems.add("archive", "files and folders only", f"{_kind(info)} {info.name!r}")
            continue
        if clean := clean_name(info.name):
            infos[clean] = info
    for name, clean in members.choose(infos).items():
        source = archive.extractfile(infos[clean])
        assert source is not None  # a regular file
        if not copy_bounded(source, folder / name, LIMITS[name]):
            problems.add(name, f"at most {LIMITS[name]} bytes", f"{infos[clean].size} bytes")
        elif (folder / name).stat().st_size != infos[clean].size:
            problems.add(name, f"{infos[clean].size} bytes, as the archive says", "fewer")
            (folder / name).unlink()


def _kind(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return "the link"
    return "the sparse file" if info.isreg() else "the device, pipe or special file"
