"""What would stop a start later is said at once, with the variable that helps."""

import contextlib
import random
import re
import socket

import pytest

from deploy.local.ports import check_port
from deploy.local.problem import Problem, explained
from tests.ports import free_port


def test_a_busy_port_names_itself_and_the_variable() -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(Problem, match=rf"Port {port} is in use.*ENGINE_PORT="):
            check_port("ENGINE_PORT", "127.0.0.1", port)
    check_port("ENGINE_PORT", "127.0.0.1", port)


def test_the_port_proposed_is_neither_busy_nor_another_of_ours() -> None:
    with contextlib.ExitStack() as held:
        port = listen_on_every_other_of_three(held)
        with pytest.raises(Problem) as refused:
            check_port("PORT", "127.0.0.1", port, taken={port, port + 1})
        proposed = int(re.search(r"PORT=(\d+)", str(refused.value)).group(1))  # type: ignore[union-attr]
        assert proposed > port + 2
        check_port("PORT", "127.0.0.1", proposed)


def listen_on_every_other_of_three(held: contextlib.ExitStack) -> int:
    """Listens on a port and on the second one after it, below those that the system hands out; returns the first."""
    for port in random.sample(range(20000, 30000, 3), 3000):
        with contextlib.suppress(OSError), contextlib.ExitStack() as tried:
            for number in (port, port + 2):
                listener = tried.enter_context(socket.socket())
                listener.bind(("127.0.0.1", number))
                listener.listen()
            held.push(tried.pop_all())
            return port
    raise AssertionError("no two free ports between 20000 and 30000")


def test_a_problem_is_one_line_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    @explained
    def main() -> int:
        raise Problem("Port 8000 is in use: choose another.")

    assert main() == 1
    assert capsys.readouterr().err == "✗ Port 8000 is in use: choose another.\n"


def test_a_full_disk_is_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    @explained
    def main() -> int:
        raise OSError(28, "No space left on device")

    assert main() == 1
    assert "disk is full" in capsys.readouterr().err
