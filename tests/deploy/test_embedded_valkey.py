"""The embedded Valkey: keeps its data, has one owner, and never outlives whoever started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from deploy.local.environment import Environment, read_environment
from deploy.local.problem import Problem
from deploy.local.valkey import check_unlocked, lock_path, running_valkey
from tests.waiting import eventually


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    return read_environment()


def test_what_was_written_is_there_after_a_restart(environment: Environment) -> None:
    with running_valkey(environment), Redis.from_url(environment.redis_url) as client:
        client.set("persona", "support")
    with running_valkey(environment), Redis.from_url(environment.redis_url) as client:
        assert client.get("persona") == b"support"


def test_a_second_server_on_the_same_data_is_refused(environment: Environment) -> None:
    with running_valkey(environment):
        holder = lock_path(environment).read_text().strip()
        with pytest.raises(Problem, match=f"already runs .* process {holder}"):
            check_unlocked(environment)
        with pytest.raises(Problem, match="already runs"), running_valkey(environment):
            pass
        with Redis.from_url(environment.redis_url) as client:
            assert client.ping()
    check_unlocked(environment)


def test_it_ends_when_the_one_that_started_it_is_killed(environment: Environment) -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "subprocess.Popen([sys.executable, '-m', 'deploy.local.valkey']); time.sleep(600)",
        ]
    )
    assert environment.valkey_socket is not None
    eventually(environment.valkey_socket.exists)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    def is_unlocked() -> bool:
        try:
            check_unlocked(environment)
        except Problem:
            return False
        return True

    eventually(is_unlocked)
