"""Everybody who takes part, each in a process of its own with one worker, as its makers have it started.

On a machine with two cores or more the server that is asked has one to itself; stub, clients and Valkey share the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis
import requests
import yaml

from benchmarks.gateway import ENGINE_KEY, MODEL, PERSONAS, ROOT, WORD
from benchmarks.gateway.install import LITELLM, VLLM_ROUTER
from deploy.local.lifetime import end_with_parent

START_TIMEOUT_S = 120.0
LOGS = ROOT / "var" / "logs"


def split_cores() -> tuple[set[int], set[int]] | None:
    """The server's core and everybody else's; None where there is only one, or no way to choose."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    first, *rest = sorted(os.sched_getaffinity(0))
    return ({first}, set(rest)) if rest else None


CORES = split_cores()


class Process:
    """A child that dies with this process, on the server's core or on the others. A variable of None is unset."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str | None] | None = None,
        served: bool = True,
        piped: bool = False,
    ) -> None:
        self.name = name
        self.log = LOGS / f"bench-gateway-{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)

        def settle() -> None:
            end_with_parent()
            if CORES is not None:
                os.sched_setaffinity(0, CORES[0 if served else 1])

        pipe = subprocess.PIPE if piped else None
        with self.log.open("w") as log:
            self._child = subprocess.Popen(
                command,
                cwd=ROOT,
                env={name: value for name, value in {**os.environ, **(environment or {})}.items() if value is not None},
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                text=True,
                preexec_fn=settle,
            )

    @property
    def pids(self) -> list[int]:
        me = psutil.Process(self._child.pid)
        return [me.pid, *(child.pid for child in me.children(recursive=True))]

    def ask(self, **arguments: Any) -> dict[str, Any]:
        """One line of JSON to a process that answers with one."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(arguments) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} stopped; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def check_alive(self) -> None:
        if self._child.poll() is not None:
            raise SystemExit(f"{self.name} stopped; see {self.log}")

    def stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(15)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


@dataclass(frozen=True)
class Contestant:
    """One that answers `/v1/chat/completions` on `port`."""

    name: str
    note: str  # what a reader of its row must know
    port: int
    process: Process
    models: tuple[str, ...] = (MODEL,)
    keys: tuple[str, ...] = (ENGINE_KEY,)
    packages: Mapping[str, str] = field(default_factory=dict)

    def await_answer(self) -> None:
        """Until it gives the answer of a persona."""
        body: Any = {"model": self.models[0], "messages": [{"role": "user", "content": "Hello"}]}
        headers = {"authorization": f"Bearer {self.keys[0]}"}
        deadline_s = time.monotonic() + START_TIMEOUT_S
        said = "nothing"
        while time.monotonic() < deadline_s:
            self.process.check_alive()
            with contextlib.suppress(requests.RequestException):
                url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
                answer = requests.post(url, json=body, headers=headers, timeout=10)
                if answer.status_code == 200 and WORD in answer.text:
                    return
                said = f"{answer.status_code} {answer.text[:200]}"
            time.sleep(0.2)
        raise SystemExit(f"{self.name} didn't answer within {START_TIMEOUT_S:.0f} s, but said {said}")


def start_stub(port: int) -> Contestant:
    process = Process("stub", [sys.executable, "-m", "benchmarks.gateway.stub", str(port)], served=False)
    return Contestant("direct", "the stub itself: what clients and stub can do at most", port, process)


def start_bare(port: int, stub_url: str) -> Contestant:
    process = Process("bare", [sys.executable, "-m", "benchmarks.gateway.bare", str(port), stub_url])
    return Contestant("bare aiohttp", "the floor: no keys, no personas, nothing counted", port, process)


@contextlib.contextmanager
def running_steerguard(port: int, stub_url: str) -> Iterator[Contestant]:
    """The whole application on a database and a Valkey of its own, with all that a deployment has switched on."""
    with tempfile.TemporaryDirectory(prefix="steerguard-bench-", ignore_cleanup_errors=True) as folder:
        run = Path(folder) / "run"
        run.mkdir()
        settings = {
            "DATA_DIR": folder,
            "DATABASE_URL": f"sqlite:///{folder}/db.sqlite3",
            "REDIS_URL": f"unix://{run / 'valkey.sock'}",
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }
        # Valkey's supervisor makes the socket's address itself.
        valkey = Process(
            "valkey",
            [sys.executable, "-m", "deploy.local.valkey"],
            environment={"DATA_DIR": folder, "REDIS_URL": ""},
            served=False,
        )
        try:
            await_redis(settings["REDIS_URL"], valkey)
            seeding = subprocess.run(
                [sys.executable, "-m", "benchmarks.gateway.seed", stub_url],
                cwd=ROOT,
                env={**os.environ, **settings},
                capture_output=True,
                text=True,
                check=False,
            )
            if seeding.returncode != 0:
                raise SystemExit(f"no personas could be made:\n{seeding.stderr[-2000:]}")
            keys = json.loads(seeding.stdout.splitlines()[-1])
            web = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1"]
            web += ["--port", str(port), "--no-access-log", "--timeout-graceful-shutdown", "3"]
            web += ["--http", "inference.bounded_http:BoundedHttp"]
            process = Process("steerguard", web, environment=settings)
            try:
                yield Contestant(
                    "SteerGuard",
                    f"{len(PERSONAS)} personas, {len(keys)} keys; limits, usage and request log on",
                    port,
                    process,
                    models=PERSONAS,
                    keys=tuple(keys),
                )
            finally:
                process.stop()
        finally:
            valkey.stop()


def await_redis(url: str, process: Process) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        process.check_alive()
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url) as client:
            client.ping()
            return
        time.sleep(0.05)
    raise SystemExit(f"Valkey didn't answer; see {process.log}")


def start_litellm(port: int, stub_url: str) -> Contestant:
    """With a master key only: its keys and budgets need PostgreSQL, and are not asked for here."""
    key = "sk-bench"
    models = [
        {
            "model_name": name,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{stub_url}/v1", "api_key": ENGINE_KEY},
        }
        for name in PERSONAS
    ]
    config = LITELLM.folder / "config.yaml"
    config.write_text(yaml.safe_dump({"model_list": models, "general_settings": {"master_key": key}}))
    command = [str(LITELLM.binary("litellm")), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DATABASE_URL": None, "REDIS_URL": None}
    process = Process("litellm", [*command, "--num_workers", "1", "--telemetry", "False"], environment=environment)
    note = f"{len(PERSONAS)} models, a master key; no database, so no keys of its own, limits or usage"
    return Contestant("LiteLLM", note, port, process, PERSONAS, (key,), installed_packages(LITELLM.binary("python")))


def start_vllm_router(port: int, stub_url: str) -> Contestant:
    command = [str(VLLM_ROUTER.binary("vllm-router")), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", stub_url, "--policy", "round_robin", "--max-concurrent-requests", "1000"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warning"]
    process = Process("vllm-router", command)
    packages = installed_packages(VLLM_ROUTER.binary("python"))
    return Contestant("vllm-router", "Rust; no keys, no personas, nothing counted", port, process, packages=packages)


def installed_packages(python: Path) -> dict[str, str]:
    names = ("litellm", "vllm-router", "uvicorn", "fastapi", "aiohttp", "httpx", "openai", "uvloop")
    code = (
        "import json, sys, importlib.metadata as m; "
        "print(json.dumps({d.name.lower(): d.version for d in m.distributions() if d.name.lower() in sys.argv[1:]}))"
    )
    run = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
