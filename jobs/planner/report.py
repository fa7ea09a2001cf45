"""A plan as rows of text, for a terminal and a page alike; and as JSON."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.planner.adapters import PAGE_BYTES
from jobs.planner.hardware import BUSES
from jobs.planner.plan import SWAP_BUSES, Plan, Way

NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """A figure of each way of serving, in the order of the plan's ways."""

    label: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    title: str
    rows: tuple[Row, ...]


def summarize(plan: Plan) -> list[tuple[str, str]]:
    """What was asked, and the sizes that all else follows from: (name, value)."""
    q = plan.question
    hardware, adapter, steering = q.hardware, q.adapter, plan.steering
    bus = BUSES[hardware.bus]
    popular = f"Zipf {q.traffic.zipf_s:g}" if q.traffic.zipf_s else "all equally"
    return [
        (
            "Model",
            f"{q.shape.name}, {q.shape.parameters / 1e9:.2f} billion weights, {show_bytes(q.shape.weight_bytes)}",
        ),
        (
            "Hardware",
            f"{hardware.gpus} × {hardware.gpu_gib:g} GiB, {bus.name} ({bus.effective_bytes_per_s / 1e9:g} GB/s "
            f"measured, "
            f"{bus.peak_bytes_per_s / 1e9:g} peak)",
        ),
        (
            "Traffic",
            f"{q.traffic.requests_per_s:g} requests/s, {q.traffic.prompt_tokens} tokens in, {q.traffic.output_tokens} "
            f"out; "
            f"{q.personas:,} personas, {popular}",
        ),
        (
            "Adapters",
            f"rank {adapter.rank} of {', '.join(name.removesuffix('_proj') for name in adapter.modules)}: "
            f"{show_bytes(plan.adapter_bytes)} each, {show_bytes(plan.adapters_bytes)} all",
        ),
        (
            "Vectors",
            f"{show_bytes(steering.vector)} each on the GPU, {show_bytes(steering.vector_file)} in float32, "
            f"{show_bytes(steering.main_memory)} all in main memory",
        ),
    ]


def sections(plan: Plan) -> list[Section]:
    """The answers, a column for each way."""
    q = plan.question
    per = " a GPU" if q.hardware.gpus > 1 else ""

    def row(label: str, show: Callable[[Way], str]) -> Row:
        return Row(label, tuple(show(way) for way in plan.ways))

    buses = dict.fromkeys((*SWAP_BUSES, q.hardware.bus))
    return [
        Section(
            f"GPU memory{per}",
            (
                row("Held for personas", lambda way: show_bytes(way.held_bytes)),
                row("… of it in use", lambda way: show_bytes(way.used_bytes)),
                row("Lost to fragmentation", lambda way: show_bytes(way.wasted_bytes)),
                row("Left for KV cache", lambda way: show_bytes(way.memory.left)),
                row(f"Most at once, {q.context_tokens:,} tokens each", lambda way: f"{way.max_batch:,}"),
                row("Personas that fit on the GPU", _fit),
            ),
        ),
        Section(
            "A persona that isn't on the GPU",
            (
                row("Copied", lambda way: show_bytes(way.swap_bytes)),
                *(
                    Row(f"… over {BUSES[bus].name}", tuple(show_s(way.swap_s[bus]) for way in plan.ways))
                    for bus in buses
                ),
                row("Found on the GPU", lambda way: _of_wait(way, lambda wait: f"{wait.hit_rate:.0%}")),
                row("Wait for a slot", lambda way: _of_wait(way, lambda wait: f"{wait.queued:.1%} of requests")),
                row("Mean wait, slot and copy", lambda way: _of_wait(way, lambda wait: show_s(wait.wait_s))),
            ),
        ),
        Section(
            "Speed, measured" if plan.calibrated else "Speed at best",
            (
                row("Engines needed", lambda way: _of_operation(way, lambda run: f"{run.engines:,}")),
                row("Requests at once, each engine", lambda way: _of_operation(way, lambda run: f"{run.batch:,.1f}")),
                row("First token", lambda way: _of_operation(way, lambda run: show_s(run.first_token_s))),
                row("Between tokens", lambda way: _of_operation(way, lambda run: show_s(run.inter_token_s))),
                row(
                    "Most tokens/s, one engine",
                    lambda way: _of_operation(way, lambda run: f"{run.most_tokens_per_s:,.0f}"),
                ),
            ),
        ),
        Section(
            f"Cost at {q.hardware.price_per_gpu_hour:g} a GPU hour",
            (
                row("A month", lambda way: _of_cost(way, lambda cost: cost.per_month)),
                row("A persona and month", lambda way: _of_cost(way, lambda cost: cost.per_persona_month)),
                row("A million tokens, this traffic", lambda way: _of_cost(way, lambda cost: cost.per_million_tokens)),
                row("A million tokens, all busy", lambda way: _of_cost(way, lambda cost: cost.per_million_tokens_full)),
            ),
        ),
    ]


def as_json(plan: Plan) -> dict[str, Any]:
    """Every input and answer, in bytes and seconds; what has no end is null."""
    q = plan.question
    return {
        "question": _plain(q),
        "adapter_bytes": plan.adapter_bytes,
        "adapters_bytes": plan.adapters_bytes,
        "weight_bytes": q.shape.weight_bytes,
        "kv_bytes_per_token": q.shape.kv_bytes_per_token(q.hardware.gpus),
        "page_bytes": PAGE_BYTES,
        "steering": _plain(plan.steering) | {"allocated": plan.steering.allocated},
        "ways": {way.key: _plain(way) for way in plan.ways},
        "speed": {"calibrated": plan.calibrated, "note": plan.speed_note},
        "notes": list(plan.notes),
    }


def show_bytes(size: float) -> str:
    """`8,192 B` below a million; then MB and GB, which are powers of ten."""
    if abs(size) < 1e6:
        return f"{size:,.0f} B"
    if abs(size) < 1e9:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e9:,.2f} GB"


def show_s(seconds: float) -> str:
    """Three digits with a unit; `no end` for infinity."""
    if math.isinf(seconds):
        return "no end"
    if seconds < 1e-9:
        return "0"
    if seconds < 1e-3:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    decimals = max(0, 2 - math.floor(math.log10(max(value, 0.01))))
    return f"{value:,.{min(decimals, 2)}f}"


def _fit(way: Way) -> str:
    if not way.memory.fits:
        return "0"
    return "any number" if way.personas_that_fit is None else f"{way.personas_that_fit:,}"


def _of_wait(way: Way, show: Callable[[Any], str]) -> str:
    if way.operation is None:
        return NOTHING
    return "no wait" if way.wait is None else show(way.wait)


def _of_operation(way: Way, show: Callable[[Any], str]) -> str:
    return NOTHING if way.operation is None else show(way.operation)


def _of_cost(way: Way, amount: Callable[[Any], float]) -> str:
    if way.cost is None:
        return NOTHING
    value = amount(way.cost)
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"


def _plain(value: Any) -> Any:
    """Dataclasses as dictionaries; JSON has no infinity."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
