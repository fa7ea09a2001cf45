"""`make bench-gateway-install`: LiteLLM's proxy and vllm-router, each in an environment of its own under var/.

Asks the package index; two minutes, 850 MB. What is installed as pinned is left alone.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.gateway import ROOT

console = Console(stderr=True)


@dataclass(frozen=True)
class Package:
    """Something that can't be installed beside SteerGuard."""

    name: str

    @property
    def folder(self) -> Path:
        return ROOT / "var" / f"bench-{self.name}"

    @property
    def requirements(self) -> Path:
        return ROOT / "benchmarks" / f"requirements-{self.name}.txt"

    @property
    def stamp(self) -> Path:
        return self.folder / "installed.txt"

    @property
    def fingerprint(self) -> str:
        return f"{sys.version}\n{self.requirements.read_text()}"

    @property
    def installed(self) -> bool:
        return self.stamp.exists() and self.stamp.read_text() == self.fingerprint

    def binary(self, name: str) -> Path:
        return self.folder / "bin" / name

    def install(self) -> str | None:
        """Make the environment; returns why not, where it can't be."""
        pip = [str(self.binary("python")), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["-r", str(self.requirements)]
        venv = [sys.executable, "-m", "venv", "--clear", str(self.folder)]
        for command in (venv, pip):
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                errors = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
                return errors[-1] if errors else (run.stderr or run.stdout).strip()[-300:]
        self.stamp.write_text(self.fingerprint)
        return None


LITELLM = Package("litellm")
VLLM_ROUTER = Package("vllm-router")
PACKAGES = (LITELLM, VLLM_ROUTER)


def install_all() -> bool:
    """Whether everything is there now; says what isn't and why."""
    complete = True
    for package in PACKAGES:
        if package.installed:
            continue
        console.print(f"installing {package.name} into var/{package.folder.name} …")
        if reason := package.install():
            complete = False
            console.print(f"{package.name} is left out, for it can't be installed: {reason}", markup=False)
    return complete


if __name__ == "__main__":
    sys.exit(0 if install_all() else 1)
