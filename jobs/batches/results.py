"""What has been answered of a batch so far: a log for each worker that had it, and the two files it becomes in the end.

A worker appends to a log of its own, named by its attempt, and begins by reading those of the attempts before. So no
two ever write to one file: one that has lost the batch without knowing it spoils nothing. A record is a line; what was
being written when a process was killed has no end and doesn't count.

    17 1 {"id": "batch_req_…", "custom_id": "18", "response": {…}, "error": null}      index, whether it succeeded, line
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from array import array
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from jobs.files import storage

INPUT = "input"
_LOG = re.compile(r"results-([0-9]{1,10})\.log", re.ASCII)
_RECORD = re.compile(rb"([0-9]{1,10}) ([01]) (\{.*\})\n")

NOWHERE = -1


def folder_of(batch_id: str) -> Path:
    return Path(settings.DATA_DIR) / "batches" / batch_id


def make_folder(batch_id: str, storage_name: str) -> None:
    """With the input under a name of the batch's own, which outlives the file's deletion. Raises FileNotFoundError."""
    folder = folder_of(batch_id)
    folder.mkdir(mode=0o700, parents=True)
    os.link(storage.path_of(storage_name), folder / INPUT)
    storage.sync_folder(folder)
    storage.sync_folder(folder.parent)


def remove_folder(batch_id: str) -> None:
    shutil.rmtree(folder_of(batch_id), ignore_errors=True)


class Results:
    """The answers to a batch's requests, by index: where they lie, not what they say."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.completed = 0
        self.failed = 0
        self._folder = folder
        self._attempt = attempt
        self._paths: list[Path] = []
        self._log = array("q")  # which of the paths
        self._start = array("q")
        self._length = array("q")
        self._succeeded = bytearray()
        self._appending = NOWHERE
        self._end = 0

    def __len__(self) -> int:
        return len(self._log)

    def __contains__(self, index: int) -> bool:
        return self._log[index] != NOWHERE

    def open(self, total: int) -> None:
        """Read the logs of earlier attempts and begin one. The first answer to a request is the answer."""
        self._log.extend([NOWHERE] * total)
        self._start.extend([0] * total)
        self._length.extend([0] * total)
        self._succeeded.extend(bytes(total))
        logs = {int(match[1]): path for path in self._folder.iterdir() if (match := _LOG.fullmatch(path.name))}
        for attempt in sorted(logs):
            if attempt < self._attempt:
                self._read(logs[attempt])
        self._paths.append(path := self._folder / f"results-{self._attempt}.log")
        self._appending = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        storage.sync_folder(self._folder)

    def close(self) -> None:
        if self._appending != NOWHERE:
            os.close(self._appending)
            self._appending = NOWHERE

    def append(self, index: int, line: bytes, *, succeeded: bool) -> None:
        """Safe from the end of this process; `sync` makes it safe from the end of the machine. Raises OSError."""
        head = b"%d %d " % (index, succeeded)
        record = memoryview(head + line + b"\n")
        while record:  # a full disk takes less than all, and the next time raises
            record = record[os.write(self._appending, record) :]
        self._note(index, len(self._paths) - 1, self._end + len(head), len(line), succeeded)
        self._end += len(head) + len(line) + 1

    def sync(self) -> None:
        os.fsync(self._appending)

    def _read(self, path: Path) -> None:
        self._paths.append(path)
        start = 0
        with path.open("rb") as log:
            for record in log:
                if (match := _RECORD.fullmatch(record)) is None:
                    return  # the end of what was written whole
                if (index := int(match[1])) < len(self):
                    self._note(index, len(self._paths) - 1, start + match.start(3), len(match[3]), match[2] == b"1")
                start += len(record)

    def _note(self, index: int, log: int, start: int, length: int, succeeded: bool) -> None:
        if index in self:
            return
        self._log[index], self._start[index], self._length[index] = log, start, length
        if succeeded:
            self.completed += 1
        else:
            self.failed += 1
        self._succeeded[index] = succeeded

    def write_files(self, unanswered: Callable[[int], bytes]) -> tuple[storage.Draft | None, storage.Draft | None]:
        """The output and the errors, each in the order of the requests and None when empty; kept, not yet anybody's.

        `unanswered` makes the line of a request that has no answer.
        """
        output, errors = storage.Draft(), storage.Draft()
        try:
            with contextlib.ExitStack() as opened:
                logs = [opened.enter_context(path.open("rb")) for path in self._paths]
                for index in range(len(self)):
                    if index in self:
                        line = os.pread(logs[self._log[index]].fileno(), self._length[index], self._start[index])
                        (output if self._succeeded[index] else errors).write(line + b"\n")
                    else:
                        errors.write(unanswered(index) + b"\n")
            return _kept(output), _kept(errors)
        except BaseException:
            output.discard()
            errors.discard()
            raise


def _kept(draft: storage.Draft) -> storage.Draft | None:
    if not draft.size:
        draft.discard()
        return None
    draft.keep()
    return draft
