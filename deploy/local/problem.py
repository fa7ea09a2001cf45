"""What a person is told when something on their machine stands in the way.

Every refusal of this package is a `Problem`: one line that says what is wrong and what to do about it.
`explained` turns it into that line on stderr and a non-zero exit, so that no traceback buries it.
"""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable


class Problem(Exception):
    """One sentence for the person at the terminal: what is wrong, then what to do."""


DISK_FULL = "The disk is full. Free some space, then run the same command again."


def explained(main: Callable[[], int]) -> Callable[[], int]:
    """Wrap an entry point: problems become one line and exit code 1, Ctrl-C becomes exit code 130."""

    @functools.wraps(main)
    def run() -> int:
        try:
            return main()
        except Problem as problem:
            print_problem(str(problem))
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            return 130
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            print_problem(DISK_FULL)
        return 1

    return run


def print_problem(text: str) -> None:
    """Print the one line, in red where the terminal can."""
    mark = "\033[31m✗\033[0m" if sys.stderr.isatty() else "✗"
    print(f"{mark} {text}", file=sys.stderr, flush=True)
