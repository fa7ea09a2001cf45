"""Where adapters are kept: one folder each, named by the digest of what is in it, below a folder of the product's own.

No name or path that a tenant chose gets here. A folder appears whole or not at all and is never written to again, so
an engine may read it at any time. It goes when nobody needs it (`collect_unused`), and not soon after it was stored:
whoever stored it may not have written down yet that they need it.
"""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from steerguard.adapters.canonical import write_adapter
from steerguard.adapters.check import CheckedAdapter

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_DRAFT = ".draft-"
_REMOVED = ".removed-"


class AdapterStore:
    """The folder `root`, made on first use, readable by its owner only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path_of(self, digest: str) -> Path:
        """Where the adapter lies, if it is there. ValueError for what isn't a digest."""
        if not _DIGEST.match(digest):
            raise ValueError(f"expected 64 lowercase hexadecimal digits, found {digest[:80]!r}")
        return self._root / digest

    def has(self, digest: str) -> bool:
        return self.path_of(digest).is_dir()

    def scratch(self) -> Path:
        """A folder on the same disk for what is being uploaded or unpacked."""
        folder = self._root / ".scratch"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)
        return folder

    def put(self, adapter: CheckedAdapter) -> str:
        """Keeps an adapter, unless it is kept already, and returns its digest. Raises OSError."""
        self.scratch()
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._root))
        try:
            digest = write_adapter(adapter, draft)
            _sync(draft)
            self._place(draft, self.path_of(digest))
            _sync(self._root)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return digest

    def collect_unused(self, in_use: Callable[[Collection[str]], Collection[str]], *, grace_s: float) -> list[str]:
        """Removes what wasn't stored within `grace_s` and isn't among the digests `in_use`, and returns its digests.

        What was left by a process that died while storing or removing goes too.
        """
        if not self._root.is_dir():
            return []
        now = time.time()
        old = [path for path in self._root.iterdir() if now - _stored_at(path) > grace_s]
        for path in old:
            if path.name.startswith((_DRAFT, _REMOVED)):
                shutil.rmtree(path, ignore_errors=True)
        for path in self.scratch().iterdir():
            if now - _stored_at(path) > grace_s:
                shutil.rmtree(path, ignore_errors=True)
        digests = {path.name for path in old if _DIGEST.match(path.name)}
        unused = digests - set(in_use(digests))
        return [digest for digest in sorted(unused) if self._remove(digest, in_use, now - grace_s)]

    def _place(self, draft: Path, target: Path) -> None:
        for _ in range(100):
            try:
                draft.rename(target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            else:
                return
            with contextlib.suppress(FileNotFoundError):  # removed this moment: the draft takes its place
                os.utime(target)
                return
        raise OSError(f"{target.name} comes and goes")

    def _remove(self, digest: str, in_use: Callable[[Collection[str]], Collection[str]], before: float) -> bool:
        """Moves it aside first, in one step: then looks whether somebody stored it or needed it meanwhile."""
        aside = Path(tempfile.mkdtemp(prefix=_REMOVED, dir=self._root))
        try:
            self.path_of(digest).rename(aside / digest)
        except FileNotFoundError:
            aside.rmdir()
            return False
        is_unused = _stored_at(aside / digest) < before and digest not in in_use({digest})
        if not is_unused:
            with contextlib.suppress(OSError):  # stored again: that one is as good
                (aside / digest).rename(self.path_of(digest))
        shutil.rmtree(aside, ignore_errors=True)
        return is_unused


def engine_id(tenant: str, digest: str) -> str:
    """What an adapter is called on engines: says neither whose it is nor what, and no two tenants share one."""
    text = "\0".join(("steerguard.adapter-engine-id.v1", tenant, digest))
    return f"sga-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _stored_at(path: Path) -> float:
    """Unix time; of what has gone, now."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
