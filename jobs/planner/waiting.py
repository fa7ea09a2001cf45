"""How long a request waits because its adapter has no slot.

The engine modelled is vLLM 0.32 with `max_loras` slots. A request whose adapter is active (some running request has it)
starts at once and may overtake. Any other waits until fewer than `slots` are active; then its adapter is copied from
main memory, unless a slot still has it (LRU). docs/planner.md, "Waiting for a slot", has the assumptions, and how far a
simulation is from the formula.
"""

import math
from dataclasses import dataclass

import numpy as np

from jobs.planner.popularity import Shares, lru_hit_rate

# An adapter with this many requests in service on average is active 99.3 % of the time: it keeps its slot.
HOLDS_ITS_SLOT = 5.0
_STEPS = 60


@dataclass(frozen=True)
class SlotWait:
    """What requests wait for adapters. Times in seconds, means over all requests."""

    hit_rate: float
    """Part of requests whose adapter is among the `slots` used last (Che's approximation): no copy."""
    active: float
    """Adapters that would be active at once if there were slots for all."""
    holding: int
    """Adapters so popular that they keep a slot for themselves."""
    queued: float
    """Part of requests that wait for a slot."""
    slot_wait_s: float
    """Mean wait for a slot, over all requests; infinite where those that keep their slots leave none."""
    copy_s: float
    """Mean time spent on copying the adapter, over all requests."""

    @property
    def wait_s(self) -> float:
        return self.slot_wait_s + self.copy_s


def expected_wait(*, requests_per_s: float, shares: Shares, service_s: float, slots: int, copy_s: float) -> SlotWait:
    """The wait for a slot when `requests_per_s` (Poisson) ask for adapters with probabilities `shares`.

    `service_s` is how long a request runs (exponential), `copy_s` how long one adapter takes over the bus.
    """
    hits = lru_hit_rate(shares, slots)
    rates = np.sort(requests_per_s * shares)
    active = float(-np.expm1(-rates * service_s).sum())
    copying = (1 - hits) * copy_s
    if slots >= len(shares) or requests_per_s <= 0:
        return SlotWait(hits, active, 0, 0.0, 0.0, copying)
    holding = int((rates * service_s >= HOLDS_ITS_SLOT).sum())
    taken = min(holding, slots)
    rest = rates[: len(rates) - taken]
    if taken == slots:
        return SlotWait(hits, active, holding, float(rest.sum()) / requests_per_s, math.inf, copying)
    wait_s, waits = _wait_for_activation(rest, service_s, slots - taken)
    cycle_s = 1 / rest + wait_s + _busy_s(rest, service_s, wait_s)
    # Found idle: it waits. Found waiting: it waits for what is left, which is W/P(wait) if waits are exponential.
    found_idle, found_waiting = 1 / rest / cycle_s, wait_s / cycle_s
    left_s = wait_s / waits if waits > 0 else 0.0
    queued = float((rest * (found_idle * waits + found_waiting)).sum()) / requests_per_s
    slot_wait_s = float((rest * (found_idle * wait_s + found_waiting * left_s)).sum()) / requests_per_s
    return SlotWait(hits, active, holding, queued, slot_wait_s, copying)


def _busy_s(rates: Shares, service_s: float, wait_s: float) -> Shares:
    """How long an adapter stays active: a busy period of M/G/∞, longer by those who came while it waited.

    The latter start together, and the last of k exponential times ends after H_k of them.
    """
    busy: Shares = np.expm1(rates * service_s) / rates + service_s * np.log1p(rates * wait_s / 2)
    return busy


def _wait_for_activation(rates: Shares, service_s: float, slots: int) -> tuple[float, float]:
    """Mean wait of an adapter that becomes wanted, and the probability that it waits.

    The machine-repair queue M/M/c//N: N adapters, each idle, then wanted, then active. Adapters of unequal popularity
    are replaced with as many equal ones as have the same mean and variance of how many are wanted. How long one is
    active depends on the wait, and the wait on that, so it is found by bisection.
    """

    def resulting(wait_s: float) -> tuple[float, float]:
        busy_s = _busy_s(rates, service_s, wait_s)
        per_s = 1 / (1 / rates + busy_s)
        wanted = per_s * busy_s
        mean = float(wanted.sum())
        chance = float((wanted**2).sum()) / mean
        return machine_repair(mean / chance, chance / (1 - chance), slots, mean / float(per_s.sum()))

    low, high = 0.0, service_s
    while resulting(high)[0] > high:
        low, high = high, high * 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if resulting(middle)[0] > middle else (low, middle)
    return high, resulting(high)[1]


def machine_repair(sources: float, ratio: float, servers: int, service_s: float) -> tuple[float, float]:
    """M/M/c//N: mean wait in seconds, and the part of arrivals that waits.

    `sources` may be a fraction; `ratio` is a source's mean service over its mean idle time. By its birth-death
    equations. Source: Gross and Harris, Fundamentals of Queueing Theory, "finite-source queues".
    """
    weights = [1.0]
    while (free := sources - len(weights) + 1) > 0:
        weights.append(weights[-1] * free * ratio / min(len(weights), servers))
        if weights[-1] > 1e200:
            weights = [weight / 1e200 for weight in weights]
        if len(weights) > servers and weights[-1] < weights[-2] and weights[-1] < 1e-20 * max(weights):
            break  # all further ones are smaller still
    arrivals = [max(0.0, sources - k) * weight for k, weight in enumerate(weights)]
    waiting = math.fsum((k - servers) * weight for k, weight in enumerate(weights) if k > servers)
    coming = math.fsum(arrivals)
    served = math.fsum(min(k, servers) * weight for k, weight in enumerate(weights))
    return waiting * service_s / served, math.fsum(arrivals[servers:]) / coming
