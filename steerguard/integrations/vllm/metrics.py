"""Steering's figures on vLLM's own `/metrics`.

Most are counted in the worker, which knows what was really added; the API server asks for them when it is scraped,
so nothing is sent while nobody looks.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import REGISTRY, Collector

_GAUGES = {
    "rows_in_use": ("steerguard:rows", "Summed rows held in the bank"),
    "rows_total": ("steerguard:rows_capacity", "Rows that the bank has room for"),
    "vectors": ("steerguard:vectors", "Registered steering vectors"),
    "vector_bytes": ("steerguard:vector_bytes", "Bytes of host memory of the registered vectors, in each process"),
    "bytes_allocated": ("steerguard:bytes", "Bytes of device memory held for steering, over all workers"),
}
_COUNTERS = {
    "steered_prompt_tokens": ("steerguard:steered_prompt_tokens", "Prompt tokens computed with something added"),
    "steered_response_tokens": (
        "steerguard:steered_response_tokens",
        "Tokens from the last prompt token on computed with something added",
    ),
    "row_evictions": ("steerguard:row_evictions", "Rows that made room for others"),
}


class SteeringMetrics(Collector):
    """The last state that the engine told; a collector of prometheus_client's default registry."""

    def __init__(self) -> None:
        self._state: Mapping[str, Any] = {}
        REGISTRY.register(self)

    def update(self, state: Mapping[str, Any]) -> None:
        """Takes what `GET /v1/steering` shows."""
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        for key, (name, text) in _GAUGES.items():
            if key in state:
                yield GaugeMetricFamily(name, text, value=state[key])
        for key, (name, text) in _COUNTERS.items():
            if key in state:
                yield CounterMetricFamily(name, text, value=state[key])
        refused = CounterMetricFamily(
            "steerguard:refused_specs", "Requests refused for their steering spec, by reason", labels=["reason"]
        )
        for reason, count in state.get("refused", {}).items():
            refused.add_metric([reason], count)
        yield refused
