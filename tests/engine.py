"""A real vLLM server with the plugin, one for the whole test session (fixture `engine`).

float32 and eager, so that its greedy tokens can be compared with a reference; KV blocks of 32 tokens (the CPU
backend's smallest), so that prompts of a hundred tokens already span several; few tokens a step, so that long prompts
are computed in chunks.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from deploy.local.lifetime import end_with_parent
from tests.ports import free_port

REPOSITORY = Path(__file__).resolve().parent.parent
MODEL_NAME = "SmolLM2-135M-Instruct"
START_TIMEOUT_S = 240
MAX_BATCHED_TOKENS = 512


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the demo model that `make model` prepares."""
    # Not under DATA_DIR: the tests have a temporary one, and the model takes a minute to prepare.
    path = REPOSITORY / "var" / "models" / MODEL_NAME
    if not (path / "model.safetensors").exists():
        pytest.fail(f"no demo model in {path}: run `make model` first")
    return path


@dataclass
class TestEngine:
    """A vLLM server process under the test's control."""

    __test__ = False

    model_path: Path
    arguments: tuple[str, ...] = ()
    key: str = "engine-test-key"
    model: str = MODEL_NAME
    port: int = 0
    log: Path = field(default_factory=lambda: Path(tempfile.mkstemp(prefix="engine-", suffix=".log")[1]))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def start(self) -> None:
        """Starts the server, on the same port as before if it had one, and waits until it answers."""
        self.port = self.port or free_port()
        environment = {
            **os.environ,
            "VLLM_PLUGINS": "steerguard",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.model_path), "--served-model-name", self.model]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--api-key", self.key]
        command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"]
        command += ["--structured-outputs-config.backend", "xgrammar"]  # as `make run` has it
        command += ["--block-size", "32", "--max-num-batched-tokens", str(MAX_BATCHED_TOKENS), *self.arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                pytest.fail(f"the test engine stopped while starting:\n{self._log_tail()}")
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"{self.url}/health", timeout=2).ok:
                    return
            time.sleep(0.5)
        self.stop()
        pytest.fail(f"the test engine wasn't up within {START_TIMEOUT_S} s:\n{self._log_tail()}")

    def stop(self, *, kill: bool = False) -> None:
        """Ends the server and all its children."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL if kill else signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None

    def restart(self) -> None:
        """Ends the server as a crash would, and starts another one at the same address."""
        self.stop(kill=True)
        self.start()

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


@pytest.fixture(scope="session")
def engine(demo_model: Path) -> Iterator[TestEngine]:
    """The session's engine. Tests leave it as they found it: registered vectors are removed again."""
    running = TestEngine(demo_model)
    running.start()
    yield running
    running.stop()
