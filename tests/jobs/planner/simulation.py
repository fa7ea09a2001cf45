"""An engine with adapter slots, event by event: what the planner's formula is compared with."""

import heapq
import itertools
import random
from collections import Counter, OrderedDict
from dataclasses import dataclass

from jobs.planner.popularity import Shares


@dataclass(frozen=True)
class Simulated:
    """Means over the requests after the warm-up."""

    slot_wait_s: float
    queued: float
    hit_rate: float


def simulate_slots(
    *, requests_per_s: float, shares: Shares, service_s: float, slots: int, requests: int, seed: int
) -> Simulated:
    """Poisson arrivals, exponential service, first come first served but for requests of active adapters."""
    draw = random.Random(seed)
    adapters = draw.choices(range(len(shares)), shares.tolist(), k=requests)
    arrivals = itertools.accumulate(draw.expovariate(requests_per_s) for _ in range(requests))
    order = itertools.count()
    events: list[tuple[float, int, bool, int]] = [
        (at, next(order), True, adapter) for at, adapter in zip(arrivals, adapters, strict=True)
    ]
    heapq.heapify(events)
    running: Counter[int] = Counter()
    waiting: list[tuple[float, int]] = []
    resident: OrderedDict[int, None] = OrderedDict()
    waits: list[float] = []
    hits: list[bool] = []

    def start(adapter: int, since: float, now: float) -> None:
        waits.append(now - since)
        hits.append(adapter in resident)
        running[adapter] += 1
        resident[adapter] = None
        resident.move_to_end(adapter)
        while len(resident) > slots:
            idle = next(a for a in resident if not running[a])
            del resident[idle]
        heapq.heappush(events, (now + draw.expovariate(1 / service_s), next(order), False, adapter))

    while events:
        now, _, arrives, adapter = heapq.heappop(events)
        if arrives:
            waiting.append((now, adapter))
        else:
            running[adapter] -= 1
            if not running[adapter]:
                del running[adapter]
        still = []
        for since, wanted in waiting:
            if running[wanted] or len(+running) < slots:
                start(wanted, since, now)
            else:
                still.append((since, wanted))
        waiting = still
    counted = slice(requests // 10, None)
    after = waits[counted]
    return Simulated(
        slot_wait_s=sum(after) / len(after),
        queued=sum(wait > 0 for wait in after) / len(after),
        hit_rate=sum(hits[counted]) / len(after),
    )


def simulate_lru(shares: Shares, *, slots: int, requests: int, seed: int) -> float:
    """Part of independent requests that find their item among the `slots` used last, after a warm-up."""
    draw = random.Random(seed)
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    warm_up = requests // 10
    for number, item in enumerate(draw.choices(range(len(shares)), shares.tolist(), k=requests)):
        hits += number >= warm_up and item in held
        held[item] = None
        held.move_to_end(item)
        if len(held) > slots:
            held.popitem(last=False)
    return hits / (requests - warm_up)
