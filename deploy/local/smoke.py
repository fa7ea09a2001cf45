"""`make smoke`: the whole product in a temporary folder, one steered and one unsteered chat, and stopped again.

It takes free ports and prints, as its last line, JSON for programs:
`{"ok": true, "cold_start_s": …, "first_token_ms": …, "steered": "…", "unsteered": "…"}`.
What took long to make, the model and the demo's vectors, is reused from DATA_DIR when it is there.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.data_dir import data_dir
from deploy.local.environment import ROOT, demo_model_dir
from deploy.local.lifetime import end_with_parent, group_exists
from deploy.local.problem import Problem, explained, print_problem
from deploy.local.ready import DEMO_QUESTION, Access

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 40.0
POLL_S = 0.2
MAX_TOKENS = 48
REUSED = ("vectors-cache",)


@dataclass(frozen=True)
class Answer:
    """One streamed chat."""

    text: str
    first_token_ms: float


@explained
def main() -> int:
    """Run the smoke test; the exit status says whether everything held."""
    with tempfile.TemporaryDirectory(prefix="steerguard-smoke-") as folder:
        try:
            result = run(Path(folder))
        except Problem as problem:
            print_problem(str(problem))
            print(json.dumps({"ok": False, "reason": str(problem)}))
            return 1
    print(json.dumps({"ok": True, **result}, ensure_ascii=False))
    return 0


def run(folder: Path) -> dict[str, Any]:
    """Start in `folder`, ask, check, stop; what the JSON line says.

    Raises:
        Problem: the first thing that did not hold.
    """
    reuse(data_dir(), folder)
    started = time.monotonic()
    with product(folder) as runner:
        access = await_ready(runner, folder)
        cold_start_s = time.monotonic() - started
        steered = ask(access, access.persona)
        unsteered = ask(access, access.base_model)
    for name, answer in (("steered", steered), ("unsteered", unsteered)):
        if not answer.text.strip():
            raise Problem(f"The {name} answer is empty.")
    if steered.text == unsteered.text:
        raise Problem(f"The steered and the unsteered answer are the same: {steered.text!r}")
    return {
        "cold_start_s": round(cold_start_s, 1),
        "first_token_ms": round(steered.first_token_ms),
        "steered": steered.text,
        "unsteered": unsteered.text,
    }


def reuse(prepared: Path, folder: Path) -> None:
    """Bring over what was made before and takes long to make."""
    for name in REUSED:
        if (prepared / name).is_dir():
            shutil.copytree(prepared / name, folder / name)


@contextlib.contextmanager
def product(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`make run` without the installing, its log passed through, stopped at the end with nothing left over."""
    environment = os.environ | {
        "DATA_DIR": str(folder),
        "PORT": str(free_port()),
        "ENGINE_PORT": str(free_port()),
        "MODEL": os.environ.get("MODEL") or str(demo_model_dir(data_dir())),
    }
    runner = subprocess.Popen(
        [sys.executable, "-m", "deploy.local.run"],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        yield runner
    finally:
        runner.send_signal(signal.SIGINT)
        try:
            status = runner.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(runner.pid, signal.SIGKILL)
            raise Problem(f"It did not stop within {STOP_TIMEOUT_S:.0f} s of Ctrl-C.") from None
    if status != 0:
        raise Problem(f"It stopped with exit code {status}.")
    if group_exists(runner.pid):
        raise Problem("It left a process behind.")


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_ready(runner: subprocess.Popen[bytes], folder: Path) -> Access:
    """Wait for the file that says a persona answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if runner.poll() is not None:
            raise Problem(f"It stopped while starting, with exit code {runner.returncode}; its log is above.")
        with contextlib.suppress(OSError, ValueError):
            return Access(**json.loads((folder / "run" / "ready.json").read_text()))
        time.sleep(POLL_S)
    raise Problem(f"No persona answered within {START_TIMEOUT_S:.0f} s; the log is above.")


def ask(access: Access, model: str) -> Answer:
    """One greedy, streamed chat with a persona or the base model."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": DEMO_QUESTION}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    request = urllib.request.Request(  # noqa: S310 -- http by construction
        f"{access.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {access.api_key}", "Content-Type": "application/json"},
    )
    sent = time.monotonic()
    first: float | None = None
    parts: list[str] = []
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
            for line in answer:
                text = delta(line)
                if text and first is None:
                    first = time.monotonic()
                parts.append(text)
    except urllib.error.HTTPError as error:
        raise Problem(f"{model} answered {error.code}: {error.read().decode(errors='replace')[:300]}") from None
    except OSError as error:
        raise Problem(f"{model} did not answer: {error}") from None
    return Answer("".join(parts), first_token_ms=((first or time.monotonic()) - sent) * 1000)


def delta(line: bytes) -> str:
    """The text of one line of an OpenAI stream; empty for the lines that carry none.

    Raises:
        Problem: the stream carries an error.
    """
    if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
        return ""
    chunk = json.loads(line[len(b"data: ") :])
    if "error" in chunk:
        raise Problem(f"The stream ended with an error: {chunk['error']}")
    choices = chunk.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


if __name__ == "__main__":
    sys.exit(main())
