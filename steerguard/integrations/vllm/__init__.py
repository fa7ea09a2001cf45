"""SteerGuard's vLLM plugin: per-request steering inside a mixed batch, without a fork.

vLLM calls `register` in each of its processes (API server, engine core, workers); it only installs patches, all
of them in `patches.py`. `SteerGuardPlugin.attach` is the way in for offline `LLM` use, `endpoints.py` for servers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steerguard.integrations.vllm.offline import SamplingParams, SteerGuardPlugin

__all__ = ["SamplingParams", "SteerGuardPlugin", "register"]


def register() -> None:
    """Entry point of `vllm.general_plugins`; may be called more than once per process."""
    from steerguard.integrations.vllm.patches import install

    install()


def __getattr__(name: str) -> Any:
    # Lazily, because vLLM loads this module while it is itself being imported.
    if name in ("SamplingParams", "SteerGuardPlugin"):
        from steerguard.integrations.vllm import offline

        return getattr(offline, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
