"""Variables, their defaults, and the secrets that an installation makes for itself."""

import stat
from pathlib import Path

import pytest

from deploy.local.environment import SOCKET_PATH_LIMIT, read_environment
from deploy.local.problem import Problem

VARIABLES = ("DATABASE_URL", "ENGINE_KEY", "ENGINE_PORT", "ENGINE_URL", "HOST", "MODEL", "PORT", "REDIS_URL")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    return tmp_path


def test_nothing_set_runs_everything_here(data: Path) -> None:
    environment = read_environment()
    assert environment.url == "http://127.0.0.1:8000"
    assert environment.engine_url == "http://127.0.0.1:8100"
    assert environment.valkey_socket is not None
    assert environment.redis_url == f"unix://{environment.valkey_socket}"
    assert environment.served_model_name == "SmolLM2-135M-Instruct"
    assert environment.model.startswith(str(data))


def test_urls_replace_the_embedded_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_URL", "http://gpu.example:9000/")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:6379/5")
    environment = read_environment()
    assert environment.engine_port is None
    assert environment.valkey_socket is None
    assert environment.for_children()["ENGINE_URL"] == "http://gpu.example:9000"


def test_a_hub_name_is_served_under_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "Qwen/Qwen3-0.6B")
    assert read_environment().served_model_name == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_a_port_that_is_none_is_refused_by_name(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_PORT", port)
    with pytest.raises(Problem, match=f"ENGINE_PORT={port} is no port"):
        read_environment()


def test_the_engine_key_is_made_once_and_private(data: Path) -> None:
    key = read_environment().engine_key
    assert len(key) > 40
    assert read_environment().engine_key == key
    assert (data / "engine-key").stat().st_mode & 0o777 == 0o600


def test_a_new_data_dir_is_for_its_owner_alone(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_DIR", str(data / "on" / "first" / "use"))
    assert mode(read_environment().data_dir) == 0o700


def test_the_default_data_dir_is_closed_and_a_persons_own_is_left_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("var", "shared"):
        (data / folder).mkdir()
        (data / folder).chmod(0o755)
    monkeypatch.setattr("deploy.data_dir.DEFAULT", data / "var")
    monkeypatch.delenv("DATA_DIR")
    assert read_environment().data_dir == data / "var"
    assert mode(data / "var") == 0o700
    monkeypatch.setenv("DATA_DIR", str(data / "shared"))
    environment = read_environment()
    assert mode(data / "shared") == 0o755
    assert mode(environment.logs) == 0o700


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_long_data_dir_still_gets_a_socket_that_the_kernel_accepts(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA_DIR", str(data / ("d" * 120)))
    socket = read_environment().valkey_socket
    assert socket is not None
    assert len(str(socket)) <= SOCKET_PATH_LIMIT
    assert socket == read_environment().valkey_socket
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    socket.parent.rmdir()
