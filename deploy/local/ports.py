"""The ports that `make run` listens on, checked before anything long starts.

Standard library only: `make run` asks this before it installs anything.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Collection

from deploy.local.environment import Environment, read_environment
from deploy.local.problem import Problem, explained


@explained
def main() -> int:
    """Check them, as the variables are now."""
    check_ports(read_environment())
    return 0


def check_ports(environment: Environment) -> None:
    """Make sure that pages and engine can listen where they should."""
    ours = {environment.port, environment.engine_port}
    check_port("PORT", environment.host, environment.port, taken=ours)
    if environment.engine_port is not None:
        if environment.engine_port == environment.port:
            raise Problem(f"PORT and ENGINE_PORT are both {environment.port}: choose two.")
        check_port("ENGINE_PORT", "127.0.0.1", environment.engine_port, taken=ours)


def check_port(variable: str, host: str, port: int, *, taken: Collection[int | None] = ()) -> None:
    """Make sure that `port` can be listened on.

    `variable` is what the person can change; a port of `taken`, our others, is not proposed for it.
    """
    try:
        _listen(host, port)
    except PermissionError:
        raise Problem(f"Port {port} is reserved for root: choose {variable} above 1023.") from None
    except OSError as error:
        if error.errno is not None and "in use" in os.strerror(error.errno):
            free = _free_port(host, port, taken)
            another = f"choose another with {variable}={free}" if free else f"set {variable} to another"
            raise Problem(f"Port {port} is in use: stop what listens there, or {another}.") from None
        raise Problem(
            f"{host}:{port} can't be listened on ({error.strerror or error}): change {variable} or HOST."
        ) from None


def _free_port(host: str, busy: int, taken: Collection[int | None]) -> int | None:
    """The first port above `busy` that is free and not spoken for, looking at a hundred."""
    for port in range(busy + 1, min(busy + 101, 65536)):
        with contextlib.suppress(OSError):
            if port not in taken:
                _listen(host, port)
                return port
    return None


def _listen(host: str, port: int) -> None:
    """Listen for a moment; an OSError says why that can't be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen()


if __name__ == "__main__":
    sys.exit(main())
