"""Watches a start until a persona answers, then says how to use what runs.

"Ready" is what the person came for: a steered completion through the public API with the demo's key, which needs the
pages, the engine, the reconciler and the vectors. DATA_DIR/run/ready.json then says the same to programs.
"""

import json
import shlex
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from deploy.local.environment import Environment

POLL_S = 0.3
ASK_AGAIN_S = 1.0
DEMO_QUESTION = "How was your day?"


@dataclass(frozen=True)
class Access:
    """How the running product is used."""

    url: str
    user: str
    password: str
    api_key: str
    persona: str
    base_model: str
    started_in_s: float


def ready_path(environment: Environment) -> Path:
    """The file that appears when a persona answers."""
    return environment.data_dir / "run" / "ready.json"


class ReadyWatch:
    """A thread that waits for each part in turn and reports it once."""

    def __init__(self, environment: Environment, started: float) -> None:
        self._environment = environment
        self._started = started
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        ready_path(environment).unlink(missing_ok=True)

    def start(self, say: Callable[[str], None], demo_is_made: Callable[[], bool]) -> None:
        """Begin watching; `say` prints a line into the log, `demo_is_made` says whether there are personas to ask."""
        self._say = say
        self._demo_is_made = demo_is_made
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; nothing is said from here on."""
        self._stopped.set()

    def _watch(self) -> None:
        environment = self._environment
        if not self._await(f"{environment.url}/healthz"):
            return
        self._say(pages_line(environment))
        self._say("personas answer once the engine is ready")
        if not self._await(f"{environment.engine_url}/health"):
            return
        while not (self._demo_is_made() or self._stopped.wait(POLL_S)):
            pass
        self._await_vectors()
        while not self._stopped.is_set():
            access = read_access(environment, started_in_s=time.monotonic() - self._started)
            if access is not None and _answers(access):
                break
            self._stopped.wait(ASK_AGAIN_S)
        else:
            return
        access = read_access(environment, started_in_s=time.monotonic() - self._started)
        assert access is not None
        descriptor = ready_path(environment)
        descriptor.touch(mode=0o600)
        descriptor.write_text(json.dumps(asdict(access)))
        show(access)

    def _await_vectors(self) -> None:
        """Wait until the reconciler has put vectors on the engine: a persona is refused before, with a warning."""
        key = {"Authorization": f"Bearer {self._environment.engine_key}"}
        request = urllib.request.Request(f"{self._environment.engine_url}/v1/steering", headers=key)  # noqa: S310
        while not self._stopped.is_set():
            try:
                with urllib.request.urlopen(request, timeout=2) as answer:  # noqa: S310 -- http by construction
                    if json.load(answer)["vectors"] > 0:
                        return
            except urllib.error.HTTPError:
                return  # an engine of somebody else's: asking it will tell
            except (OSError, ValueError, KeyError):
                pass
            self._stopped.wait(POLL_S)

    def _await(self, url: str) -> bool:
        while not self._stopped.is_set():
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 -- http by construction
                    if answer.status == 200:
                        return True
            except OSError:
                pass
            self._stopped.wait(POLL_S)
        return False


def read_access(environment: Environment, *, started_in_s: float) -> Access | None:
    """What seed_demo left in DATA_DIR/demo-credentials.json, or None when it isn't there."""
    try:
        said: dict[str, Any] = json.loads((environment.data_dir / "demo-credentials.json").read_text())
    except (OSError, ValueError):
        return None
    return Access(
        url=environment.url,
        user=said["user"],
        password=said["password"],
        api_key=said["api_key"],
        persona=said["persona"],
        base_model=environment.served_model_name,
        started_in_s=round(started_in_s, 1),
    )


def pages_line(environment: Environment) -> str:
    """Where the pages are, and what to type there."""
    access = read_access(environment, started_in_s=0)
    log_in = f" · log in as {access.user} / {access.password}" if access else ""
    return f"pages are up at {environment.url}{log_in}"


def curl_line(access: Access) -> str:
    """A command that prints a steered answer when pasted into a shell."""
    question = {"role": "user", "content": DEMO_QUESTION}
    body = json.dumps({"model": access.persona, "messages": [question], "max_tokens": 60})
    return (
        f"curl -s {access.url}/v1/chat/completions \\\n"
        f"  -H 'Authorization: Bearer {access.api_key}' -H 'Content-Type: application/json' \\\n"
        f"  -d {shlex.quote(body)}"
    )


def show(access: Access) -> None:
    """Print the box that says where everything is, and below it, unboxed for pasting, the curl line."""
    rows = Text()
    for label, value in (
        ("Open", access.url),
        ("Log in", f"{access.user} / {access.password}"),
        ("API key", access.api_key),
        ("Persona", f"{access.persona}   (unsteered: {access.base_model})"),
        ("Stop", "Ctrl-C"),
    ):
        rows.append(f"{label:<9}", style="bold")
        rows.append(value if label == "Stop" else f"{value}\n")
    console = Console(file=sys.stdout, highlight=False)
    title = f"SteerGuard is ready · {access.started_in_s:.0f} s"
    console.print()
    console.print(Panel(rows, title=title, border_style="green", expand=False))
    print(f"Ask it from another terminal:\n\n{curl_line(access)}\n", flush=True)


def _answers(access: Access) -> bool:
    """Whether the persona answers one short request."""
    body = {"model": access.persona, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    request = urllib.request.Request(  # noqa: S310 -- http by construction
        f"{access.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {access.api_key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return int(answer.status) == 200
    except OSError:
        return False
