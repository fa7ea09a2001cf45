"""What an operator sets for the plugin, by environment variable, and what follows from it for one engine."""

import math
import os
from dataclasses import dataclass

from steerguard import __version__

DEFAULT_BANK_MIB = 256
DEFAULT_VECTORS_MIB = 2048
DEFAULT_MAX_DOSE = 2.0
DEFAULT_DOSE_CEILING = 8.0


@dataclass(frozen=True)
class PluginConfig:
    """Read from the environment once per process; every process of an engine must see the same."""

    bank_mib: int = DEFAULT_BANK_MIB
    """Upper bound on the device memory of the summed vectors, MiB (`STEERGUARD_BANK_MIB`)."""
    max_blend_layers: int | None = None
    """Blocks one phase of a blend may steer (`STEERGUARD_MAX_BLEND_LAYERS`); None: as many as the bank has room for."""
    vectors_mib: int = DEFAULT_VECTORS_MIB
    """Upper bound on the registered vectors, MiB of host memory in each process (`STEERGUARD_VECTORS_MIB`)."""
    max_dose: float = DEFAULT_MAX_DOSE
    """Highest relative dose at any block of a blend that sets no limit of its own (`STEERGUARD_MAX_DOSE`)."""
    dose_ceiling: float = DEFAULT_DOSE_CEILING
    """Highest limit that a blend may set for itself (`STEERGUARD_DOSE_CEILING`)."""

    @classmethod
    def from_environment(cls) -> "PluginConfig":
        """Raises ValueError naming the variable."""
        layers = os.environ.get("STEERGUARD_MAX_BLEND_LAYERS")
        return cls(
            bank_mib=_positive_int("STEERGUARD_BANK_MIB", str(DEFAULT_BANK_MIB)),
            max_blend_layers=None if layers is None else _positive_int("STEERGUARD_MAX_BLEND_LAYERS", layers),
            vectors_mib=_positive_int("STEERGUARD_VECTORS_MIB", str(DEFAULT_VECTORS_MIB)),
            max_dose=_positive_float("STEERGUARD_MAX_DOSE", str(DEFAULT_MAX_DOSE)),
            dose_ceiling=_positive_float("STEERGUARD_DOSE_CEILING", str(DEFAULT_DOSE_CEILING)),
        )

    def blend_layers(self, *, num_layers: int, hidden_size: int, itemsize: int, max_num_seqs: int) -> int:
        """Blocks that one phase of a blend may steer on this engine.

        Every request of a full batch may bring its own blend with two phases, and none may wait or run
        unsteered: so the bank holds 2 · max_num_seqs rows of this many blocks each.
        """
        room = (self.bank_mib << 20) // (hidden_size * itemsize * 2 * max_num_seqs)
        limit = min(num_layers, room, self.max_blend_layers or num_layers)
        if limit < 1:
            raise ValueError(
                f"STEERGUARD_BANK_MIB: expected room for {2 * max_num_seqs} rows of hidden size {hidden_size}, "
                f"found {self.bank_mib}"
            )
        return limit

    def compile_factors(self) -> str:
        """What of the plugin shapes the compiled graph, for vLLM's compile-cache key."""
        return f"steerguard {__version__} {self.bank_mib} {self.max_blend_layers}"


def _positive_int(name: str, default: str) -> int:
    text = os.environ.get(name, default)
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}: expected a whole number above 0, found {text!r}")
    return int(text)


def _positive_float(name: str, default: str) -> float:
    text = os.environ.get(name, default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name}: expected a number above 0, found {text!r}")
    return value
