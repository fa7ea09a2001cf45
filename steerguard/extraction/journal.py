"""An engine's answers kept in a file as they come, so that a killed run asks only for the rest.

JSON Lines, one `{"key": …, "value": …}` per answer, appended and flushed; `key` is the digest of what was asked.
A line that a kill cut short is dropped when the file is opened again.
"""

import fcntl
import hashlib
import json
from pathlib import Path
from typing import Any


class Journal:
    """Answers by the digest of what was asked: in `path`, or only in memory without one.

    Raises RuntimeError when another process has the file.
    """

    def __init__(self, path: Path | None) -> None:
        self._answers: dict[str, Any] = {}
        self._file = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise RuntimeError(f"{path}: expected a file that nobody uses, found it in use") from None
        self._file.seek(0)
        whole = 0
        for line in self._file:
            try:
                entry = json.loads(line)
                key, value = entry["key"], entry["value"]
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self._answers[key] = value
            whole += len(line)
        self._file.truncate(whole)

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> Any | None:
        return self._answers.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keeps a finished answer (anything that JSON holds, but null)."""
        self._answers[key] = value
        if self._file is not None:
            self._file.write(json.dumps({"key": key, "value": value}).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def digest_of(question: Any) -> str:
    """SHA-256 (hex) of something that JSON holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()
