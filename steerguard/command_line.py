"""What the library's commands share: how they answer a shell, and how they write files.

Each package has a `cli.py` with `register(commands)`, which adds its command and sets `run`, a function of the
parsed options that returns the exit status. Packages are imported when a command line is parsed, so a `cli.py`
imports torch, a model or a parser of foreign files only inside `run`.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Run = Callable[[argparse.Namespace], int]

ANSWERED = 0
REFUSED = 2
"""The input is wrong, and standard error says what was expected and found."""
UNANSWERED = 3
"""The input doesn't say something that only the caller can know, and standard error says which option says it."""


def answer(result: Mapping[str, object]) -> int:
    """Prints `result` as one JSON line on standard output; the exit status of a command that worked."""
    print(json.dumps(result))
    return ANSWERED


def write_whole(path: Path, data: bytes) -> None:
    """Writes beside `path` and renames, so that no reader ever sees half a file. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
