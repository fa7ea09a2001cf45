"""Ports for servers that have to be told one, and keep it when they start again."""

import os
import random
import socket

# Below those that the system hands out for port 0 and for connections, so that nobody gets one of them by chance.
FIRST, LAST = 10_000, 19_999

_random = random.Random(os.getpid())


def free_port() -> int:
    """A port that is free, and that only another call of this can take."""
    while True:
        port = _random.randint(FIRST, LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
