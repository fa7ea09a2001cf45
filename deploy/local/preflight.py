"""What would stop `make run` later, found out before anything long starts."""

import os
import shutil
import socket

from deploy.local.environment import Environment
from deploy.local.problem import Problem
from deploy.local.valkey import check_redis, check_unlocked

NEEDED_GIB = 0.5


def check(environment: Environment) -> None:
    """Raise the first `Problem` found."""
    free_gib = shutil.disk_usage(environment.data_dir).free / 2**30
    if free_gib < NEEDED_GIB:
        raise Problem(f"Only {free_gib:.1f} GiB are free at {environment.data_dir}; free some space first.")
    if environment.valkey_socket is not None:
        check_unlocked(environment)
    else:
        check_redis(environment)
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
