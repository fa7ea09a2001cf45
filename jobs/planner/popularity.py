"""Which personas requests ask for: uniform or Zipf, and what follows for a cache of adapters."""

import numpy as np
import numpy.typing as npt

Shares = npt.NDArray[np.float64]
"""Probability of each persona, most popular first: [personas], summing to 1."""


def popularity(personas: int, zipf_s: float = 0.0) -> Shares:
    """Probability of each persona, most popular first: proportional to 1 / rank^s. 0 is uniform."""
    weights = np.arange(1, personas + 1, dtype=np.float64) ** -zipf_s
    shares: Shares = weights / weights.sum()
    return shares


def distinct_in_batch(shares: Shares, batch: float) -> float:
    """Distinct personas expected among `batch` requests drawn independently: Σ 1 − (1 − p)^n."""
    return float((1 - (1 - shares) ** batch).sum())


def lru_hit_rate(shares: Shares, slots: int) -> float:
    """Part of requests that find their adapter among the `slots` used last.

    Che's approximation under the independent reference model: an item stays for a characteristic time t with
    Σ 1 − e^(−p·t) = slots, and a request hits with Σ p · (1 − e^(−p·t)). Source: Che, Tung, Wang, "Hierarchical Web
    caching systems", IEEE JSAC 20(7), 2002; why it is so close: Fricker, Robert, Roberts, arXiv 1202.3974.
    """
    if slots >= len(shares):
        return 1.0
    if slots <= 0:
        return 0.0

    def held(time: float) -> float:
        return float(-np.expm1(-shares * time).sum())

    low, high = 0.0, float(slots)
    while held(high) < slots:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if held(middle) < slots else (low, middle)
    return float(-(shares * np.expm1(-shares * high)).sum())
