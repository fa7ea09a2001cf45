"""The ports that `make run` listens on, checked before anything long starts.

Standard library only: `make run` asks this before it installs anything.
"""

import os
import socket
import sys

from deploy.local.environment import Environment, read_environment
from deploy.local.problem import Problem, explained


@explained
def main() -> int:
    """Check them, as the variables are now."""
    check_ports(read_environment())
    return 0


def check_ports(environment: Environment) -> None:
    """Make sure that pages and engine can listen where they should."""
    check_port("PORT", environment.host, environment.port)
    if environment.engine_port is not None:
        if environment.engine_port == environment.port:
            raise Problem(f"PORT and ENGINE_PORT are both {environment.port}: choose two.")
        check_port("ENGINE_PORT", "127.0.0.1", environment.engine_port)


def check_port(variable: str, host: str, port: int) -> None:
    """Make sure that `port` can be listened on; `variable` is what the person can change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except PermissionError:
            raise Problem(f"Port {port} is reserved for root: choose {variable} above 1023.") from None
        except OSError as error:
            if error.errno is not None and "in use" in os.strerror(error.errno):
                raise Problem(
                    f"Port {port} is in use: stop what listens there, or choose another with {variable}={port + 1}."
                ) from None
            raise Problem(
                f"{host}:{port} can't be listened on ({error.strerror or error}): change {variable} or HOST."
            ) from None


if __name__ == "__main__":
    sys.exit(main())
