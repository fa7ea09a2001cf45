"""The processes of `make run`: which may end, who stops last, and what the person is told on the way."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from deploy.local import processes
from deploy.local.environment import read_environment
from deploy.local.log import DEMO, LogPrinter
from deploy.local.processes import VALKEY, Runner, commands
from deploy.local.ready import ReadyWatch, pages_line
from deploy.local.run import typed_at

# Up once the demo is gone. Notes when it stops: Valkey at once, the others as slowly as real servers.
SERVER = """
import pathlib, signal, sys, time
name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
def stop(*_):
    time.sleep(0 if name == "valkey" else 0.5)
    with (folder / "order").open("a") as file:
        file.write(name + "\\n")
    sys.exit()
while not (folder / "demo-gone").exists():
    time.sleep(0.02)
signal.signal(signal.SIGTERM, stop)
(folder / f"{name}-up").touch()
while True:
    signal.pause()
"""


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ENGINE_URL", "REDIS_URL", "PORT", "MAKE_RUN_STARTED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path


class Watch(ReadyWatch):
    """Asks for the stop once everything is up and the demo made, as Ctrl-C would."""

    runner: Runner

    def _watch(self) -> None:
        folder = self._environment.data_dir
        while not self._demo_is_made():
            time.sleep(0.02)
        (folder / "demo-gone").touch()
        while not all((folder / f"{name}-up").exists() for name in ("web", "worker", "jobs", VALKEY, "engine")):
            time.sleep(0.02)
        self.runner.terminate()


def test_the_demo_may_end_and_valkey_stops_last(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_ins(environment: Any) -> dict[str, list[str]]:
        servers = {name: [sys.executable, "-c", SERVER, name, str(data)] for name in commands(environment)}
        return servers | {DEMO: [sys.executable, "-c", "print('made')"]}

    monkeypatch.setattr(processes, "commands", stand_ins)
    environment = read_environment()
    watch = Watch(environment, time.monotonic())
    runner = watch.runner = Runner(environment, LogPrinter(io.StringIO(), environment.logs, verbose=False), watch)
    runner.loop()
    assert (data / "order").exists(), "the end of the demo stopped the rest"
    stopped = (data / "order").read_text().split()
    assert sorted(stopped) == sorted(["web", "worker", "jobs", "engine", VALKEY])
    assert stopped[-1] == VALKEY


def test_the_log_in_is_said_with_the_address(data: Path) -> None:
    environment = read_environment()
    assert pages_line(environment) == "pages are up at http://127.0.0.1:8000"
    said = {"user": "demo", "password": "pass-word", "api_key": "sg_x", "persona": "harbor/sunny"}
    (data / "demo-credentials.json").write_text(json.dumps(said))
    assert pages_line(environment) == "pages are up at http://127.0.0.1:8000 · log in as demo / pass-word"


def test_the_seconds_count_from_when_make_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKE_RUN_STARTED", str(int(time.time()) - 100))
    assert 100 <= time.monotonic() - typed_at() < 130
    monkeypatch.setenv("MAKE_RUN_STARTED", "yesterday")
    assert time.monotonic() - typed_at() < 30
