"""The inference engine of `make run`: vLLM's own OpenAI server with the plugin, started again when it crashes.

`python -m deploy.local.engine` supervises; vLLM runs below it in a process group of its own, so that its engine core
and workers never outlive it. An engine that has never been ready is not restarted: what stopped it (a wrong MODEL, too
little memory) would stop it again, and the person should read why. An engine that was ready is.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from types import FrameType

from deploy.local.environment import ROOT, Environment, is_local, read_environment
from deploy.local.lifetime import end_group, end_with_parent, how_it_ended
from deploy.local.log import OWN_LINE
from deploy.local.problem import explained

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
CRASHES_IN_A_ROW = 5
POLL_S = 0.25
SIGN_OF_LIFE_S = 15.0
STOP_PATIENCE_S = 8.0


@explained
def main() -> int:
    """Run the engine until told to stop."""
    end_with_parent()
    environment = read_environment()
    say(f"loading {environment.served_model_name}")
    command = vllm_command(environment)
    if environment.accelerator == "cpu" and compiles(command) and not has_compiler():
        say("torch.compile needs a C++ compiler (sudo apt install g++): running without it, a little slower")
        command.append("--enforce-eager")
    return keep_running(command, vllm_environment(environment), health_url=f"{environment.engine_url}/health")


def say(text: str) -> None:
    """Print a line that the log shows as it is, among vLLM's own."""
    print(f"{OWN_LINE}{text}", flush=True)


def vllm_command(environment: Environment) -> list[str]:
    """vLLM's API server. The `vllm` command itself crashes in the CPU package, so its module is run."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", environment.model),
        *("--served-model-name", environment.served_model_name),
        *("--host", "127.0.0.1", "--port", str(environment.engine_port)),
        *engine_arguments(environment),
    ]


def engine_arguments(environment: Environment) -> list[str]:
    """What a person may change with ENGINE_ARGS, which comes last and so wins."""
    # Named, vLLM refuses a grammar that xgrammar can't make, with a 400. Left to itself it lets such a grammar in for
    # another backend, and fails or ignores parts of it: an engine keeps the backend of its first structured request.
    arguments = ["--max-num-seqs", "256", "--structured-outputs-config.backend", "xgrammar"]
    if environment.accelerator == "cpu":
        arguments += ["--max-model-len", "4096"]
        # Ready in a third of the time, for a tenth of the speed: docs/decisions/0002-eager-by-default.md.
        arguments += ["--enforce-eager"]
    return arguments + shlex.split(os.environ.get("ENGINE_ARGS", ""))


def compiles(command: list[str]) -> bool:
    """Whether vLLM would use torch.compile, which on a CPU builds C++; the last of the two flags wins."""
    flags = [word for word in command if word in ("--enforce-eager", "--no-enforce-eager")]
    return not flags or flags[-1] == "--no-enforce-eager"


def has_compiler() -> bool:
    """Whether inductor would find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++") if name)


def vllm_environment(environment: Environment) -> dict[str, str]:
    """Environment of the engine: the plugin, the key, no telemetry, no fetching of what is already here."""
    chosen = environment.for_children() | {
        "VLLM_PLUGINS": "steerguard",
        "VLLM_API_KEY": environment.engine_key,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
    }
    if environment.accelerator == "cpu":
        chosen.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if is_local(environment.model):
        chosen.setdefault("HF_HUB_OFFLINE", "1")
    return chosen


class _Stopping(Exception):
    """SIGTERM or SIGINT arrived."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopping


def keep_running(command: list[str], environment: dict[str, str], *, health_url: str) -> int:
    """Run `command`, restarting it with growing pauses after crashes; return 0 when told to stop.

    It counts as ready once `health_url` answers 200. The exit status of a process that was never ready, or that
    crashed CRASHES_IN_A_ROW times without becoming ready in between, is returned.
    """
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    crashes, ever_ready, pause_s = 0, False, FIRST_PAUSE_S
    while True:
        started = time.monotonic()
        process: subprocess.Popen[bytes] | None = None
        try:
            process = subprocess.Popen(
                command, env=environment, cwd=ROOT, start_new_session=True, preexec_fn=end_with_parent
            )
            if _await_ready(process, health_url):
                say(f"ready after {time.monotonic() - started:.0f} s")
                crashes, ever_ready, pause_s = 0, True, FIRST_PAUSE_S
            status = process.wait()
            end_group(process, patience_s=0)
            crashes += 1
            if not ever_ready or crashes >= CRASHES_IN_A_ROW:
                return status or 1
            say(f"{how_it_ended(status)}; starting again in {pause_s:.0f} s")
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        except _Stopping:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if process is not None:
                end_group(process, patience_s=STOP_PATIENCE_S)
            return 0


def _await_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers or the process is gone; which of the two. Says now and then that it waits."""
    started = time.monotonic()
    next_sign_s = SIGN_OF_LIFE_S
    while process.poll() is None:
        if (waited_s := time.monotonic() - started) >= next_sign_s:
            say(f"still loading the model ({waited_s:.0f} s)")
            next_sign_s += SIGN_OF_LIFE_S
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 -- our own loopback address
                if answer.status == 200:
                    return True
        except OSError:
            time.sleep(POLL_S)
    return False


if __name__ == "__main__":
    sys.exit(main())
