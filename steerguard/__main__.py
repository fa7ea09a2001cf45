"""`python -m steerguard`: the library from a shell.

Results are one JSON line on standard output, progress and refusals go to standard error. Exit status 2: the
input was refused, and the reason says which part. 3: an option has to say what the input doesn't.
"""

import argparse
import sys
from collections.abc import Sequence

from steerguard.adapters import cli as adapters
from steerguard.calibration import cli as calibration
from steerguard.command_line import REFUSED
from steerguard.extraction import cli as extraction
from steerguard.vectors import cli as vectors

COMMANDS = (extraction.register, vectors.register, adapters.register, calibration.register)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; a command line that can't be parsed raises SystemExit(2)."""
    assert __doc__
    parser = argparse.ArgumentParser(prog="steerguard", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for register in COMMANDS:
        register(commands)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, OSError, RuntimeError) as error:
        print(f"steerguard {options.command}: {error}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
