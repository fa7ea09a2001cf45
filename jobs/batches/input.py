"""The requests of a batch: where each of its file's lines lies, and what is wrong with the file.

    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "acme/support", …}}

A file with a line that is no request at all fails as a whole, with the number of each such line; what a persona or the
engine has against a request is that line's own answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_CUSTOM_ID_CHARS = 512
MAX_ERRORS = 100  # that are told of a file
MAX_SHOWN_CHARS = 100


class Stopped(Exception):
    """Nobody waits for the check any more."""


class LineError(Exception):
    """What is wrong with one line. `line` counts from 1."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Line:
    """One request. `index` counts the requests from 0."""

    index: int
    custom_id: str
    body: Mapping[str, Any]


class Requests:
    """A file's requests, read from the disk one by one: it holds where they begin, not what they say."""

    def __init__(self, path: Path, endpoint: str) -> None:
        self.errors: list[dict[str, Any]] = []
        self._path = path
        self._descriptor = -1
        self._endpoint = endpoint
        self._starts = array("q")
        self._lengths = array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def check(self, stop: threading.Event) -> None:
        """Find the lines, and what is wrong with them. Raises Stopped, FileNotFoundError."""
        self._descriptor = os.open(self._path, os.O_RDONLY)
        custom_ids: set[bytes] = set()
        start = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if stop.is_set():
                    raise Stopped
                if line.strip():
                    try:
                        parsed = self._parse(line)
                        digest = hashlib.blake2b(parsed["custom_id"].encode(errors="replace"), digest_size=16).digest()
                        if digest in custom_ids:
                            raise LineError(
                                "duplicate_custom_id", "Another line has this 'custom_id' too.", "custom_id"
                            )
                        custom_ids.add(digest)
                    except LineError as error:
                        self._note(error, number)
                    self._starts.append(start)
                    self._lengths.append(len(line))
                start += len(line)
        if not self._starts:
            self._note(LineError("empty_file", "The file has no requests."), None)
        elif len(self) > settings.BATCH_MAX_LINES:
            self._note(
                LineError("too_many_requests", f"There are more than {settings.BATCH_MAX_LINES} requests."), None
            )

    def close(self) -> None:
        if self._descriptor != -1:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, index: int) -> Line:
        """One of a file that `check` has found to be well."""
        parsed = self._parse(os.pread(self._descriptor, self._lengths[index], self._starts[index]))
        return Line(index, parsed["custom_id"], parsed["body"])

    def _parse(self, line: bytes) -> dict[str, Any]:
        """Raises LineError."""
        if len(line) > settings.BATCH_MAX_LINE_BYTES:
            raise LineError("line_too_long", f"The line is longer than {settings.BATCH_MAX_LINE_BYTES} bytes.")
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            raise LineError("invalid_json_line", "The line is not valid JSON.") from None
        if not isinstance(parsed, dict):
            raise LineError("invalid_json_line", "The line is not a JSON object.")
        custom_id = parsed.get("custom_id")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
            raise LineError(
                "invalid_custom_id",
                f"'custom_id' must be a text of 1 to {MAX_CUSTOM_ID_CHARS} characters.",
                "custom_id",
            )
        if parsed.get("method") != "POST":
            raise LineError("invalid_method", f"'method' must be 'POST', not {_shown(parsed.get('method'))}.", "method")
        if parsed.get("url") != self._endpoint:
            expected = f"'url' must be the batch's endpoint {self._endpoint}, not {_shown(parsed.get('url'))}."
            raise LineError("invalid_url", expected, "url")
        if not isinstance(parsed.get("body"), dict):
            raise LineError("missing_required_parameter", "'body' must be an object.", "body")
        return parsed

    def _note(self, error: LineError, number: int | None) -> None:
        if len(self.errors) < MAX_ERRORS:
            told = {"code": error.code, "message": error.message, "param": error.param, "line": number}
            self.errors.append(told)


def _shown(value: object) -> str:
    return repr(value)[:MAX_SHOWN_CHARS]
