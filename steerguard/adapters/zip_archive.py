"""Zip archives, read with Python's zipfile but never with its extract."""

import stat
import struct
import zipfile
import zlib
from pathlib import Path

from steerguard.adapters.archive import (
    LIMITS,
    MAX_MEMBERS,
    MAX_RATIO,
    MAX_TOTAL_BYTES,
    RATIO_FREE_BYTES,
    Members,
    clean_name,
    copy_bounded,
)
from steerguard.adapters.problems import Problems

MAX_DIRECTORY_BYTES = 1024 * 1024

_END = struct.Struct("<4s4H2LH")
_UNREADABLE = (
    zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError, EOFError, OSError, zlib.error, struct.error,
    KeyError, OverflowError,
)  # fmt: skip


def extract(path: Path, folder: Path, problems: Problems) -> None:
    """Writes the adapter's files into `folder`; what is wrong is added to `problems`."""
    if path.stat().st_size > MAX_TOTAL_BYTES:
        problems.add("archive", f"at most {MAX_TOTAL_BYTES} bytes", f"{path.stat().st_size}")
        return
    try:
        if not _has_small_directory(path, problems):
            return
        with zipfile.ZipFile(path) as archive:
            _extract(archive, path.stat().st_size, folder, problems)
    except _UNREADABLE as error:
        problems.add("archive", "a zip or tar that can be read", str(error)[:120] or type(error).__name__)


def _has_small_directory(path: Path, problems: Problems) -> bool:
    """Looks at the end record before zipfile does, which makes objects of as many members as it names."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _END.size - 65_535))
        tail = file.read()
    # As zipfile finds it: first without a comment, then the last one there is.
    at = len(tail) - _END.size
    if at < 0 or tail[at : at + 4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
        at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        problems.add("archive", "a zip or tar that can be read", "a zip without its end")
        return False
    _, _, _, _, count, directory_bytes, _, _ = _END.unpack_from(tail, at)
    if tail[max(0, at - 20) : at][:4] == b"PK\x06\x07":
        problems.add("archive", f"a zip of at most {MAX_MEMBERS} members and 4 GiB", "a zip64 directory")
        return False
    if count > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES:
        problems.add("archive", f"at most {MAX_MEMBERS} members", f"{count}, with {directory_bytes} bytes of names")
        return False
    return True


def _extract(archive: zipfile.ZipFile, size: int, folder: Path, problems: Problems) -> None:
    members = Members(problems)
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if not members.admit(info.orig_filename, info.file_size):
            return
        mode = stat.S_IFMT(info.external_attr >> 16)
        if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
            kind = "the link" if mode == stat.S_IFLNK else "the device or special file"
            problems.add("archive", "files and folders only", f"{kind} {info.orig_filename!r}")
        elif not info.is_dir() and mode != stat.S_IFDIR and (clean := clean_name(info.orig_filename)):
            infos[clean] = info
    for name, clean in members.choose(infos).items():
        info = infos[clean]
        if info.flag_bits & 0x1:
            problems.add(name, "a file that isn't encrypted", "an encrypted one")
        elif info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            problems.add(name, "a file that is stored or deflated", f"compression method {info.compress_type}")
        elif info.file_size > max(MAX_RATIO * size, RATIO_FREE_BYTES):
            problems.add(name, f"at most {MAX_RATIO} times the archive's size", f"{info.file_size} bytes of {size}")
        else:
            _extract_one(archive, info, folder / name, problems)


def _extract_one(archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path, problems: Problems) -> None:
    """zipfile ends at the size that the directory says, and checks the CRC there."""
    name = target.name
    try:
        with archive.open(info) as source:
            if not copy_bounded(source, target, LIMITS[name]):
                problems.add(name, f"at most {LIMITS[name]} bytes", f"{info.file_size} bytes")
    except _UNREADABLE as error:
        target.unlink(missing_ok=True)
        problems.add(name, "a file that can be unpacked", str(error)[:120] or type(error).__name__)
