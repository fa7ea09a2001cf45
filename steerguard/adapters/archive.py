"""What all archives have in common: limits, and what their members' names may be.

Of an archive only the adapter's two files are ever written, under names of ours.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath
from typing import Protocol

from steerguard.adapters.config import CONFIG_FILE, MAX_CONFIG_BYTES
from steerguard.adapters.problems import Problems

WEIGHTS_FILE = "adapter_model.safetensors"
MAX_WEIGHTS_BYTES = 2 * 1024**3
MAX_TOTAL_BYTES = MAX_WEIGHTS_BYTES + 64 * 1024**2
MAX_MEMBERS = 1_000
MAX_NAME_BYTES = 512
MAX_RATIO = 200
"""How much larger than its archive content may be. A fresh adapter, half of which is zeros, comes to 2."""

RATIO_FREE_BYTES = 4 * 1024 * 1024
PIECE_BYTES = 64 * 1024

LIMITS = {CONFIG_FILE: MAX_CONFIG_BYTES, WEIGHTS_FILE: MAX_WEIGHTS_BYTES}

# Pickles, which can be code: nothing here ever reads one.
_PICKLES = tuple(f"adapter_model.{ending}" for ending in ("bin", "pt", "pth", "ckpt", "pkl", "pickle"))
INTERESTING = {*LIMITS, *_PICKLES}


class Readable(Protocol):
    """A file, as far as copying one goes."""

    def read(self, size: int, /) -> bytes: ...


class Members:
    """What an archive's members are called: which two are the adapter, and what is wrong with any of the names."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._seen: set[str] = set()
        self._count = 0
        self._total = 0

    def admit(self, name: str, size: int) -> bool:
        """Whether the archive may be read on after a member of this name and size; what is wrong is noted."""
        self._count += 1
        if self._count > MAX_MEMBERS:
            self._problems.add("archive", f"at most {MAX_MEMBERS} members", "more")
            return False
        self._total += size
        if self._total > MAX_TOTAL_BYTES:
            self._problems.add("archive", f"at most {MAX_TOTAL_BYTES} bytes when unpacked", f"{self._total} or more")
            return False
        clean = _clean(name)
        if clean is None:
            self._problems.add("archive", "names of files below the archive's own folder", name)
        elif clean in self._seen:
            self._problems.add("archive", "each name once", f"{clean} twice")
        else:
            self._seen.add(clean)
        return True

    def choose(self, files: Iterable[str]) -> dict[str, str]:
        """Which of the regular `files` (clean names) are the adapter's two, by their own names.

        They are in the archive's top folder, or in the one below it that holds them; of several, in the highest.
        """
        folders: dict[PurePosixPath, dict[str, str]] = {}
        for clean in files:
            place = PurePosixPath(clean)
            if place.name in INTERESTING:
                folders.setdefault(place.parent, {})[place.name] = clean
        depth = min((len(folder.parts) for folder in folders), default=0)
        highest = [folder for folder in folders if len(folder.parts) == depth]
        if len(highest) > 1:
            names = ", ".join(sorted(str(folder) for folder in highest))
            self._problems.add("archive", f"{CONFIG_FILE} and {WEIGHTS_FILE} in one folder", f"them in {names}")
            return {}
        found = folders[highest[0]] if highest else {}
        check_presence(found, self._problems)
        return {name: clean for name, clean in found.items() if name in LIMITS}


def clean_name(name: str) -> str:
    """A member's name without `./`; one that isn't fit is no file's, and so is empty."""
    return _clean(name) or ""


def copy_bounded(source: Readable, target: Path, most: int) -> bool:
    """Copies to a new file that only its owner may read. False, with no file left, when there are more bytes."""
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        left = most
        while piece := source.read(min(PIECE_BYTES, left + 1)):
            left -= len(piece)
            if left < 0:
                break
            out.write(piece)
    if left < 0:
        target.unlink()
    return left >= 0


def _clean(name: str) -> str | None:
    parts = name.rstrip("/").split("/")
    if (
        not name.isprintable()
        or name.startswith("/")
        or "\\" in name
        or ".." in parts
        or ":" in parts[0]
        or len(name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES
    ):
        return None
    return "/".join(part for part in parts if part not in ("", "."))


def check_presence(present: Collection[str], problems: Problems) -> None:
    """Notes what of `INTERESTING` is missing, or shouldn't be there."""
    for name in LIMITS:
        if name not in present:
            problems.add(name, "a file of that name", "none")
    for name in _PICKLES:
        if name in present:
            problems.add(name, f"only {WEIGHTS_FILE}, which can't hold code", f"{name}, a pickle")
