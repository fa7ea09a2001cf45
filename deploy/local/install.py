"""`make install`: .venv from the lock, in a minute or two, and nothing at all when it is already there.

Run by the system's Python with the standard library only. Three pip runs, because vLLM's CPU build asks for
packages that must not come along (docs/decisions/0001-lock.md): torch from wherever its CPU build is, then the
lock without dependencies and hash-checked, then this checkout, so that vLLM finds the plugin's entry points.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from deploy.local.problem import Problem, explained
from deploy.local.progress import Note, Steps, heading

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "steerguard-install.json"
LOCKS = {"cpu": ROOT / "requirements.lock", "cuda": ROOT / "requirements-cuda.lock"}
NEEDED_GIB = {"cpu": 6, "cuda": 20}
# Where PyTorch publishes CPU builds; asked only when the configured package index has none.
TORCH_CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")

# What pip prints, and what that means to the person who waits for it. First match wins.
PIP_FAILURES: tuple[tuple[str, str], ...] = (
    (r"No space left on device", "The disk filled up. Free {needed} GiB, then run `make install` again."),
    (
        r"DO NOT MATCH THE HASHES|hash mismatch",
        "A package arrived damaged or is not the one that was locked. Run `make install` again; if that "
        "fails too, your package index serves a different file ({log}).",
    ),
    (
        r"IncompleteRead|Connection broken|incomplete-download|ReadTimeoutError|Read timed out|BadZipFile",
        "A download broke off. Check the network and run `make install` again; what is complete is kept.",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|Failed to establish a new connection"
        r"|NewConnectionError|ConnectTimeout|ProxyError|Network is unreachable|SSLError",
        "The package index can't be reached. Check the network (or proxy, or pip's index-url), then run "
        "`make install` again.",
    ),
    (
        r"No matching distribution found for (?P<what>\S+)",
        "There is no build of {what} for Python {python} on {machine}. Python 3.11 to 3.13 on 64-bit Linux "
        "works: choose one with `make install PYTHON=python3.12`.",
    ),
    (r"Permission denied", "{venv} can't be written: it belongs to someone else. Remove it or change its owner."),
)


@explained
def main() -> int:
    """Bring .venv to what the lock says."""
    accelerator = os.environ.get("ACCELERATOR", "cpu")
    if accelerator not in LOCKS:
        raise Problem(f"ACCELERATOR={accelerator} is unknown: use cpu (the default) or cuda.")
    fingerprint = _fingerprint(accelerator)
    stamp = _read_stamp()
    if stamp.get("fingerprint") == fingerprint and (VENV / "bin" / "python").exists():
        return 0

    _check_machine(accelerator)
    heading(f"Installing SteerGuard into {VENV.name} (once; later starts skip this)")
    steps = Steps(total=4)
    with steps.step("Virtual environment") as step:
        _make_venv(replace=stamp.get("accelerator", accelerator) != accelerator)
        step.result = f"Python {platform.python_version()}"
    if accelerator == "cpu":
        with steps.step(f"torch {_torch_version()}, CPU build") as step:
            _install_torch(step.note)
    else:
        steps.skip("torch, CUDA build", "comes with the locked packages")
    total = sum(1 for line in LOCKS[accelerator].read_text().splitlines() if re.match(r"[a-zA-Z0-9]", line))
    with steps.step(f"{total} locked packages") as step:
        _pip(["--no-deps", "-r", str(LOCKS[accelerator])], note=step.note, total=total)
    with steps.step("This checkout, so that vLLM finds the plugin") as step:
        _pip(["--no-deps", "--no-build-isolation", "-e", str(ROOT)], note=step.note)
    STAMP.write_text(json.dumps({"fingerprint": fingerprint, "accelerator": accelerator}))
    return 0


def _fingerprint(accelerator: str) -> str:
    """Digest of everything that decides what .venv contains."""
    digest = hashlib.sha256()
    for part in (LOCKS[accelerator], ROOT / "pyproject.toml"):
        digest.update(part.read_bytes())
    digest.update(f"{accelerator} {_torch_version()} {platform.python_version()} {ROOT}".encode())
    return digest.hexdigest()


def _read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _torch_version() -> str:
    """The pin of torch in requirements.txt; the lock leaves torch out (docs/decisions/0001-lock.md)."""
    found = re.search(r"^torch==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert found, "requirements.txt pins torch"
    return found.group(1)


def _check_machine(accelerator: str) -> None:
    """Refuse before anything long starts, naming the one thing to do."""
    if sys.version_info < (3, 11):  # noqa: UP036 -- this very check is for older Pythons
        raise Problem(f"Python 3.11 or newer is needed, this is {platform.python_version()}: set PYTHON=python3.12.")
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise Problem("Python's venv module is missing: run `sudo apt install python3-venv`, then this again.")
    if not os.access(ROOT, os.W_OK):
        raise Problem(f"{ROOT} can't be written: clone the repository into a folder of your own.")
    needed = NEEDED_GIB[accelerator]
    free_gib = shutil.disk_usage(ROOT).free / 2**30
    if free_gib < needed and not STAMP.exists():
        raise Problem(
            f"Only {free_gib:.1f} GiB are free at {ROOT}; the installation needs {needed} GiB. Free some space first."
        )


def _make_venv(*, replace: bool) -> None:
    usable = (VENV / "bin" / "python").exists() and (VENV / "bin" / "pip").exists()
    if usable and not replace:
        return
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        if "No space left" in made.stdout + made.stderr:
            raise Problem(explain_failure("No space left on device"))
        if "ensurepip" in made.stdout + made.stderr:
            raise Problem("Python's venv module is incomplete: run `sudo apt install python3-venv`, then this again.")
        raise Problem(f"{VENV} can't be made: {(made.stderr or made.stdout).strip().splitlines()[-1]}")


def _install_torch(note: Callable[[Note], None]) -> None:
    """Install torch's CPU build: from the configured index if it has one, else from PyTorch's own."""
    version = _torch_version()
    try:
        # `+cpu` never matches the CUDA build of several GB that the public index serves for Linux on x86-64.
        _pip(["--no-deps", f"torch=={version}+cpu"], note=note)
    except Problem:
        if not _last_failure_was("No matching distribution found"):
            raise
        note("from PyTorch's CPU index")
        _pip(["--no-deps", "--index-url", TORCH_CPU_INDEX, f"torch=={version}"], note=note)


def _pip(arguments: list[str], *, note: Callable[[Note], None], total: int | None = None) -> None:
    """Run `pip install` quietly, telling `note` where it is; a failure becomes a `Problem`.

    Everything pip prints goes to the log, which the message names when nothing better can be said.
    """
    # Byte code is written on first import instead: compiling all 20,000 modules takes longer than all downloads.
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-compile"]
    command += arguments
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1", "PIP_NO_INPUT": "1"}
    seen = 0
    with (
        _log_path().open("w") as log,
        subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            log.flush()
            if re.match(r"\s*(Collecting|Requirement already|Ignoring|Obtaining) ", line):
                seen += 1
            if text := _describe(line, seen, total):
                note(text)
    if pip.returncode != 0:
        raise Problem(explain_failure(_log_path().read_text(errors="replace")))


def _describe(line: str, seen: int, total: int | None) -> Note:
    """One pip line as a short note, or an empty string when it says nothing of interest."""
    count = f"{seen}/{total} " if total else ""
    if found := re.match(r"\s*(?:Collecting|Obtaining) ([A-Za-z0-9._-]+)", line):
        return f"{count}{found.group(1)}"
    if found := re.match(r"\s*Downloading (\S+?)(?:\.metadata)? \((.*)\)", line):
        return f"{count}{found.group(1).rsplit('/', 1)[-1].split('-')[0]}, {found.group(2)}"
    if line.lstrip().startswith("Installing collected packages"):
        return lambda: f"unpacking {_installed()}/{total or 1}"
    return ""


def _installed() -> int:
    """How many packages lie in .venv, pip and setuptools included; pip is silent while it unpacks."""
    return sum(1 for _ in VENV.glob("lib/python*/site-packages/*.dist-info"))


def explain_failure(output: str) -> str:
    """Turn pip's output into the one line that a person needs."""
    facts = {
        "needed": NEEDED_GIB["cpu"],
        "log": _log_path(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "venv": VENV,
    }
    for pattern, text in PIP_FAILURES:
        if found := re.search(pattern, output):
            return text.format(**facts, **found.groupdict())
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    return f"pip failed: {errors[-1][7:] if errors else 'no reason given'} (all of it: {facts['log']})"


def _last_failure_was(text: str) -> bool:
    return text in _log_path().read_text(errors="replace")


def _log_path() -> Path:
    folder = VENV if VENV.exists() else Path(tempfile.gettempdir())
    return folder / "install.log"


if __name__ == "__main__":
    sys.exit(main())
