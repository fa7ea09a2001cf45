"""What would stop a start later is said at once, with the variable that helps."""

import contextlib
import re
import socket

import pytest

from deploy.local.ports import check_port
from deploy.local.problem import Problem, explained


def test_a_busy_port_names_itself_and_the_variable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Problem, match=rf"Port {port} is in use.*ENGINE_PORT="):
            check_port("ENGINE_PORT", "127.0.0.1", port)
    check_port("ENGINE_PORT", "127.0.0.1", port)


def test_the_port_proposed_is_neither_busy_nor_another_of_ours() -> None:
    with socket.socket() as taken, socket.socket() as busy:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with contextlib.suppress(OSError):  # busy already is as good
            busy.bind(("127.0.0.1", port + 2))
            busy.listen()
        with pytest.raises(Problem) as refused:
            check_port("PORT", "127.0.0.1", port, taken={port, port + 1})
    proposed = int(re.search(r"PORT=(\d+)", str(refused.value)).group(1))  # type: ignore[union-attr]
    assert proposed > port + 2
    check_port("PORT", "127.0.0.1", proposed)


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
