"""The engine is started again when it crashes, given up on when it never came up, and stopped whole."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO

import pytest

from deploy.local.engine import compiles
from deploy.local.lifetime import group_exists, how_it_ended
from tests.ports import free_port
from tests.waiting import PATIENCE_S, eventually

# Stands in for vLLM: a health route, a child process as vLLM's engine core is one, and a note of each start.
SERVER = """
import os, subprocess, sys, http.server, pathlib
port, starts = int(sys.argv[1]), pathlib.Path(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with starts.open("a") as file:
    file.write(f"{os.getpid()}\\n")
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
SUPERVISOR = """
import os, sys
from deploy.local.engine import keep_running
sys.exit(keep_running(sys.argv[2:], dict(os.environ), health_url=sys.argv[1]))
"""


def line_with(output: IO[str] | None, said: str) -> str:
    """The next line, apart from those that only say that it goes on, which has to say that."""
    assert output is not None
    line = next(line for line in output if "still loading" not in line or "still loading" in said)
    assert said in line
    return line


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def supervise(*command: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SUPERVISOR, url, *command], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    return tmp_path / "starts"


def pids(starts: Path) -> list[int]:
    return [int(line) for line in starts.read_text().splitlines()] if starts.exists() else []


def test_a_crashed_engine_comes_back_and_all_of_it_stops(starts: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/health"
    supervisor = supervise(sys.executable, "-c", SERVER, str(port), str(starts), url=url)
    line_with(supervisor.stdout, "ready after")
    first = pids(starts)[0]

    os.kill(first, signal.SIGKILL)
    line_with(supervisor.stdout, "was killed (SIGKILL); starting again in 1 s")
    line_with(supervisor.stdout, "ready after")
    assert len(pids(starts)) == 2
    assert not group_exists(first), "the crashed engine's own children are gone too"

    supervisor.terminate()
    assert supervisor.wait(PATIENCE_S) == 0
    assert not group_exists(pids(starts)[1])
    assert not healthy(url)


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "ended without being told to (exit code 0)"), (1, "crashed (exit code 1)"), (-15, "was killed (SIGTERM)")],
)
def test_how_a_process_ended_is_said_in_words(status: int, said: str) -> None:
    assert how_it_ended(status) == said


def test_a_long_load_shows_that_it_goes_on() -> None:
    impatient = SUPERVISOR.replace("sys.exit", "engine.SIGN_OF_LIFE_S = 0.3\nsys.exit").replace(
        "import os, sys", "import os, sys\nfrom deploy.local import engine"
    )
    command = [sys.executable, "-c", impatient, "http://127.0.0.1:9/health", sys.executable, "-c", "input()"]
    loading = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    line_with(loading.stdout, "still loading the model")
    loading.terminate()
    assert loading.wait(PATIENCE_S) == 0


def test_an_engine_that_never_came_up_is_not_tried_again() -> None:
    supervisor = supervise(sys.executable, "-c", "import sys; sys.exit(7)", url="http://127.0.0.1:9/health")
    assert supervisor.wait(PATIENCE_S) == 7


def test_the_engine_ends_when_its_supervisor_is_killed(starts: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}/health"
    supervisor = supervise(sys.executable, "-c", SERVER, str(port), str(starts), url=url)
    eventually(lambda: healthy(url))
    supervisor.kill()
    supervisor.wait()
    eventually(lambda: not healthy(url))
    os.killpg(pids(starts)[0], signal.SIGKILL)  # the stand-in's child has no such manners as vLLM's


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], True), (["--enforce-eager"], False), (["--enforce-eager", "--no-enforce-eager"], True)],
)
def test_the_last_flag_decides_about_compiling(arguments: list[str], expected: bool) -> None:
    assert compiles(arguments) is expected
