"""Imports in a process of their own, for a server that people send files to.

torch, which `.pt` files need, takes seconds to import and would hold up every answer that the server streams; and a
file that finds a bug in a parser finds it in a process that has nothing, may not grow and soon ends.

The parent sends a JSON line, the request, and then the file; the child answers a JSON line and then the canonical
file. The child is `python -m steerguard.vectors.importers.isolated`, without the server's environment.
"""

import json
import os
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import steerguard
from steerguard.vectors.canonical import MAX_VECTOR_BYTES, read_vector, write_vector
from steerguard.vectors.importers import Imported, ImportRequest, Source, Unanswered, import_vector
from steerguard.vectors.vector import VectorError

MODULE = "steerguard.vectors.importers.isolated"
TIMEOUT_S = 600.0
"""Generous, because a busy machine makes any file take long; what bounds a file is the next two."""
CPU_S = 60
MEMORY_BYTES = 2 * 1024**3
"""Of writable memory: torch takes a quarter of it before anything is read."""
MAX_ANSWER_BYTES = MAX_VECTOR_BYTES + 1024 * 1024


class ImportFailed(Exception):
    """The process ended without an answer: it ran out of time or memory, or it crashed."""


def import_isolated(source: Source, request: ImportRequest) -> Imported:
    """As import_vector, in another process. Raises what that raises, and ImportFailed."""
    head = json.dumps({"name": source.name, "request": asdict(request)}).encode() + b"\n"
    command = [sys.executable, "-P", "-m", MODULE]
    environment = {"PYTHONPATH": str(Path(steerguard.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603 - our own module, and no argument from outside
            command, input=head + source.data, capture_output=True, env=environment, cwd="/", timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ImportFailed(f"reading the file took longer than {TIMEOUT_S:.0f} s") from None
    if done.returncode or len(done.stdout) > MAX_ANSWER_BYTES:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason"])[-1]
        raise ImportFailed(f"reading the file failed with status {done.returncode}: {reason[:200]}")
    line, _, file = done.stdout.partition(b"\n")
    said = json.loads(line)
    if "refused" in said:
        raise VectorError(*said["refused"])
    if "asked" in said:
        raise Unanswered(*said["asked"])
    return Imported(read_vector(file), said["format"], said["convention"], tuple(said["warnings"]))


def main(stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Answers one import."""
    for limit, value in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S)):
        with suppress(ValueError, OSError):  # a lower one is there already
            resource.setrlimit(limit, (value, value))
    asked = json.loads(stdin.readline())
    said: dict[str, Any]
    file = b""
    try:
        imported = import_vector(Source(stdin.read(), asked["name"]), ImportRequest(**asked["request"]))
        said = {"format": imported.format, "convention": imported.convention, "warnings": imported.warnings}
        file = write_vector(imported.vector)
    except VectorError as error:
        said = {"refused": [error.field, error.expected, error.found]}
    except Unanswered as question:
        said = {"asked": [question.field, question.choices, question.why]}
    stdout.write(json.dumps(said).encode() + b"\n" + file)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()
    os._exit(0)  # torch's threads and destructors have nothing left to do
