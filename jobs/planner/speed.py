"""How fast an engine answers at a batch size: at best, by its GPU's roofline, or as measured (calibration.py).

A batch is taken as one that starts together: everybody's prompt, then everybody's tokens. That is what the benchmark
runs, and under continuous batching its mean.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from jobs.planner.hardware import Hardware
from jobs.planner.shape import ModelShape


class Speed(Protocol):
    """Seconds until `batch` prompts are read, and between a token of each and the next."""

    def first_token_s(self, batch: float, prompt_tokens: float) -> float: ...
    def inter_token_s(self, batch: float, context_tokens: float) -> float: ...


@dataclass(frozen=True)
class Roofline:
    """At best: memory and tensor cores at their peaks, one after the other's bound (Williams et al., CACM 52(4), 2009).

    A step reads all weights once and the keys and values of every request; each token costs two operations a weight.
    Attention's own operations, communication between GPUs and the scheduler are left out, so no engine is as fast.
    """

    shape: ModelShape
    hardware: Hardware

    def first_token_s(self, batch: float, prompt_tokens: float) -> float:
        return max(self._read_s(0), self._compute_s(batch * prompt_tokens))

    def inter_token_s(self, batch: float, context_tokens: float) -> float:
        cache = batch * context_tokens * self.shape.kv_bytes_per_token(self.hardware.gpus) * self.hardware.gpus
        return max(self._read_s(cache), self._compute_s(batch))

    def _read_s(self, cache_bytes: float) -> float:
        per_s = self.hardware.gpus * self.hardware.memory_gb_per_s * 1e9
        return (self.shape.weight_bytes + cache_bytes) / per_s

    def _compute_s(self, tokens: float) -> float:
        return 2 * self.shape.parameters * tokens / (self.hardware.gpus * self.hardware.tflops * 1e12)


@dataclass(frozen=True)
class Slowed:
    """Another speed, of whose throughput a part is left."""

    speed: Speed
    part: float

    def first_token_s(self, batch: float, prompt_tokens: float) -> float:
        return self.speed.first_token_s(batch, prompt_tokens) / self.part

    def inter_token_s(self, batch: float, context_tokens: float) -> float:
        return self.speed.inter_token_s(batch, context_tokens) / self.part


@dataclass(frozen=True)
class Traffic:
    """What is asked: requests a second (Poisson), tokens of prompt and answer, and of which personas (Zipf's s)."""

    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    zipf_s: float = 0.0


def batch_s(speed: Speed, batch: float, traffic: Traffic) -> float:
    """Seconds from the start of a batch to its last token."""
    context = traffic.prompt_tokens + traffic.output_tokens / 2
    first = speed.first_token_s(batch, traffic.prompt_tokens)
    return first + (traffic.output_tokens - 1) * speed.inter_token_s(batch, context)


@dataclass(frozen=True)
class Operation:
    """Engines under a traffic, each with an equal part of it."""

    engines: int
    batch: float
    """Requests that run at once on each, on average."""
    request_s: float
    first_token_s: float
    """Of a request that comes alone into the running batch."""
    inter_token_s: float
    most_requests_per_s: float
    """What one engine answers at its largest batch."""
    most_tokens_per_s: float


def operate(speed: Speed, traffic: Traffic, max_batch: int) -> Operation:
    """The fewest engines that keep up, and where they then run: requests at once = arrivals · time (Little's law)."""

    def per_s(batch: float) -> float:
        return batch / batch_s(speed, batch, traffic)

    most = per_s(max_batch)
    engines = max(1, math.ceil(traffic.requests_per_s / most - 1e-9))
    asked = traffic.requests_per_s / engines
    low, high = 1.0, float(max_batch)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if per_s(middle) < asked else (low, middle)
    request_s = batch_s(speed, high, traffic)
    context = traffic.prompt_tokens + traffic.output_tokens / 2
    return Operation(
        engines=engines,
        batch=asked * request_s,
        request_s=request_s,
        first_token_s=speed.first_token_s(1, traffic.prompt_tokens) + speed.inter_token_s(high, context),
        inter_token_s=speed.inter_token_s(high, context),
        most_requests_per_s=most,
        most_tokens_per_s=most * traffic.output_tokens,
    )
