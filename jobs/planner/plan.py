"""A plan: the question in one dataclass, the answers for three ways of serving personas in another."""

import math
from dataclasses import dataclass, field, replace

from jobs.planner.adapters import (
    PAGE_BYTES,
    AdapterShape,
    adapter_bytes,
    page_waste_bytes,
    pages,
    slot_bytes,
    slot_rank,
)
from jobs.planner.calibration import BASE, LORA, STEERED, Calibration
from jobs.planner.errors import require
from jobs.planner.hardware import BUSES, Hardware
from jobs.planner.memory import Memory, divide_memory
from jobs.planner.popularity import Shares, distinct_in_batch, lru_hit_rate, popularity
from jobs.planner.shape import ATTENTION_MODULES, ModelShape
from jobs.planner.speed import Operation, Roofline, Slowed, Speed, Traffic, operate
from jobs.planner.vectors import SteeringBytes, steering_bytes
from jobs.planner.waiting import SlotWait, expected_wait

HOURS_PER_MONTH = 730
# The SteerGuard article's 1,840 over 2,410 tok/s: a claim, for want of a measurement on the reader's GPU.
CLAIMED_LORA_PART = 1840 / 2410
MAX_PERSONAS = 10_000
SWAP_BUSES = ("pcie4", "pcie5")


@dataclass(frozen=True)
class Question:
    """What is to be served on what. Counts are whole numbers; tokens per request; see docs/planner.md."""

    shape: ModelShape
    hardware: Hardware = field(default_factory=Hardware)
    personas: int = 50
    adapter: AdapterShape = field(default_factory=lambda: AdapterShape(16, ATTENTION_MODULES))
    slots: int = 8
    """Adapters that may be active at once (`--max-loras`)."""
    restricted_slots: bool = False
    """The engine has slots for the adapters' modules only (`--lora-target-modules`)."""
    vectors_per_persona: int = 1
    layers_per_vector: int = 1
    limit_layers: bool = True
    """STEERGUARD_MAX_BLEND_LAYERS is set to what the personas need."""
    traffic: Traffic = field(default_factory=lambda: Traffic(2.0, 500, 200))
    context_tokens: int = 4096
    """Prompt and answer together that a request may have: what a place in the batch is reckoned with."""
    max_seqs: int = 256
    """Requests that the engine runs at once (`--max-num-seqs`)."""
    max_batched_tokens: int = 8192
    lora_part: float = CLAIMED_LORA_PART
    """Throughput with adapters over throughput without."""

    def __post_init__(self) -> None:
        traffic = self.traffic
        for name, value, most in (
            ("personas", self.personas, MAX_PERSONAS),
            ("slots", self.slots, 10_000),
            ("vectors_per_persona", self.vectors_per_persona, 64),
            ("layers_per_vector", self.layers_per_vector, self.shape.layers),
            ("context_tokens", self.context_tokens, 10_000_000),
            ("prompt_tokens", traffic.prompt_tokens, self.context_tokens),
            ("output_tokens", traffic.output_tokens, self.context_tokens),
            ("max_seqs", self.max_seqs, 4096),
            ("max_batched_tokens", self.max_batched_tokens, 1_000_000),
        ):
            require(type(value) is int and 1 <= value <= most, name, f"a whole number from 1 to {most:,}", value)
        both = traffic.prompt_tokens + traffic.output_tokens
        fits = f"{both} or more, for prompt and answer"
        require(both <= self.context_tokens, "context_tokens", fits, self.context_tokens)
        ranges = (
            ("requests_per_s", traffic.requests_per_s, 1e5),
            ("zipf_s", traffic.zipf_s, 5),
            ("lora_part", self.lora_part, 1),
        )
        for name, number, limit in ranges:
            least = 0 if name == "zipf_s" else 1e-6
            require(
                math.isfinite(number) and least <= number <= limit,
                name,
                f"a number from {least:g} to {limit:g}",
                number,
            )


@dataclass(frozen=True)
class Cost:
    """In the currency of the price. Tokens are those of answers."""

    per_month: float
    per_persona_month: float
    per_million_tokens: float
    """At the traffic asked about."""
    per_million_tokens_full: float
    """With every engine at its largest batch."""


@dataclass(frozen=True)
class Way:
    """One way of serving the personas. Bytes are of one GPU."""

    key: str
    name: str
    held_bytes: float
    """On the GPU beside weights and KV cache."""
    used_bytes: float
    """Of that, what is weights or rows of personas in use."""
    wasted_bytes: float
    """Of that, and of the KV cache's pages, what nothing can use."""
    memory: Memory
    max_batch: int
    personas_that_fit: int | None
    """On the GPU, beside the requests of this traffic at full context; None: as many as main memory holds."""
    swap_bytes: float
    """What is copied when a persona isn't on the GPU."""
    swap_s: dict[str, float]
    """By bus; the one of the hardware too."""
    wait: SlotWait | None
    operation: Operation | None
    """None where not one request fits."""
    cost: Cost | None


@dataclass(frozen=True)
class Plan:
    """The answers. `adapter_bytes` is one adapter whole; `speed_note` says where speeds come from."""

    question: Question
    adapter_bytes: int
    adapters_bytes: int
    steering: SteeringBytes
    ways: tuple[Way, ...]
    speed_note: str
    calibrated: bool
    notes: tuple[str, ...]


def make_plan(question: Question, calibration: Calibration | None = None) -> Plan:
    """Answers a question; with a calibration of the same model, from measured speeds. Raises PlanError."""
    q, shape = question, question.shape
    shares = popularity(q.personas, q.traffic.zipf_s)
    on_gpu = adapter_bytes(shape, q.adapter, gpus=q.hardware.gpus)
    steering = steering_bytes(
        shape,
        personas=q.personas,
        vectors_per_persona=q.vectors_per_persona,
        layers_per_vector=q.layers_per_vector,
        max_seqs=q.max_seqs,
        max_batched_tokens=q.max_batched_tokens,
        limit_layers=q.limit_layers,
    )
    with_adapters, steered, speed_note = _speeds(q, calibration)

    slot = slot_bytes(shape, q.adapter, restricted=q.restricted_slots, gpus=q.hardware.gpus)
    filled = min(q.slots, q.personas) * on_gpu
    static = _way(
        q,
        key="lora",
        name="Multi-LoRA, static slots",
        speed=with_adapters,
        held_bytes=q.slots * slot,
        used_bytes=filled,
        wasted_bytes=q.slots * slot - filled,
        swap_bytes=on_gpu,
        shares=shares,
        slots=q.slots,
        bytes_per_persona=slot,
    )
    resident = distinct_in_batch(shares, q.max_seqs)
    paged = _way(
        q,
        key="slora",
        name="S-LoRA, unified pages",
        speed=with_adapters,
        held_bytes=resident * pages(on_gpu) * PAGE_BYTES,
        used_bytes=resident * on_gpu,
        wasted_bytes=page_waste_bytes(on_gpu, resident, 0),
        swap_bytes=on_gpu,
        shares=shares,
        cached=max(1, round(resident)),
        lost_per_request=PAGE_BYTES / 2,
    )
    rows = _way(
        q,
        key="steering",
        name="Steering",
        speed=steered,
        held_bytes=steering.allocated,
        used_bytes=steering.used_rows,
        wasted_bytes=steering.unused,
        swap_bytes=steering.row,
        shares=shares,
    )
    one = adapter_bytes(shape, q.adapter)
    ways = (static, paged, rows)
    return Plan(q, one, one * q.personas, steering, ways, speed_note, calibration is not None, _notes(q, static))


def _speeds(q: Question, calibration: Calibration | None) -> tuple[Speed, Speed, str]:
    """With adapters and with steering, and where they come from."""
    if calibration is None:
        best = Roofline(q.shape, q.hardware)
        note = (
            f"At best: {q.hardware.memory_gb_per_s:,.0f} GB/s and {q.hardware.tflops:,.0f} TFLOPS a GPU, all the "
            f"time; engines reach a part of it. With adapters {q.lora_part:.0%} of the throughput is left (assumed), "
            "with steering all of it (measured on a CPU). Benchmark your own GPU before buying."
        )
        return Slowed(best, q.lora_part), best, note
    has_lora = len(calibration.medians.get(LORA, {})) >= 2
    steered = calibration.speed(STEERED if STEERED in calibration.medians else BASE)
    with_adapters: Speed = calibration.speed(LORA) if has_lora else Slowed(steered, q.lora_part)
    note = (
        f"Measured: {calibration.model} on {calibration.machine}, {calibration.measured_at[:10]}, "
        f"{calibration.path.name}. The GPU's speed isn't used. vLLM's LoRA on a CPU is plain PyTorch: on a GPU the "
        "gap is smaller."
    )
    return with_adapters, steered, note


def _way(
    q: Question,
    *,
    key: str,
    name: str,
    speed: Speed,
    held_bytes: float,
    used_bytes: float,
    wasted_bytes: float,
    swap_bytes: float,
    shares: Shares,
    slots: int | None = None,
    cached: int | None = None,
    bytes_per_persona: float | None = None,
    lost_per_request: float = 0.0,
) -> Way:
    """`slots` that requests wait for, or adapters `cached` without a limit; neither where nothing is ever copied."""
    memory = divide_memory(
        q.shape,
        q.hardware,
        context_tokens=q.context_tokens,
        extras_bytes=held_bytes,
        lost_per_request=lost_per_request,
    )
    swap_s = {bus: BUSES[bus].transfer_s(swap_bytes) for bus in (*SWAP_BUSES, q.hardware.bus)}
    max_batch = min(q.max_seqs, memory.batch)
    operation = wait = cost = fit = None
    if memory.fits:
        operation = operate(speed, q.traffic, max_batch)
        wait = _wait(q, operation, shares, swap_s[q.hardware.bus], slots, cached)
        cost = _cost(q, operation)
        if bytes_per_persona:
            at_once = max(1, math.ceil(operation.batch))
            room = memory.left + held_bytes - at_once * memory.request_bytes
            fit = max(0, int(room // bytes_per_persona))
    return Way(
        key=key,
        name=name,
        held_bytes=held_bytes,
        used_bytes=used_bytes,
        wasted_bytes=wasted_bytes + max_batch * lost_per_request,
        memory=memory,
        max_batch=max_batch,
        personas_that_fit=fit,
        swap_bytes=swap_bytes,
        swap_s=swap_s,
        wait=wait,
        operation=operation,
        cost=cost,
    )


def _wait(
    q: Question, operation: Operation, shares: Shares, copy_s: float, slots: int | None, cached: int | None
) -> SlotWait | None:
    asked = q.traffic.requests_per_s / operation.engines
    if slots is not None:
        return expected_wait(
            requests_per_s=asked, shares=shares, service_s=operation.request_s, slots=slots, copy_s=copy_s
        )
    if cached is not None:  # as many slots as adapters: nobody waits for one, but what isn't cached is copied
        free = expected_wait(
            requests_per_s=asked, shares=shares, service_s=operation.request_s, slots=len(shares), copy_s=0
        )
        hits = lru_hit_rate(shares, cached)
        return replace(free, hit_rate=hits, copy_s=(1 - hits) * copy_s)
    return None


def _cost(q: Question, operation: Operation) -> Cost:
    per_hour = operation.engines * q.hardware.gpus * q.hardware.price_per_gpu_hour
    tokens_per_hour = q.traffic.requests_per_s * q.traffic.output_tokens * 3600
    full_per_hour = operation.engines * operation.most_tokens_per_s * 3600
    per_month = per_hour * HOURS_PER_MONTH
    return Cost(
        per_month=per_month,
        per_persona_month=per_month / q.personas,
        per_million_tokens=per_hour / tokens_per_hour * 1e6,
        per_million_tokens_full=per_hour / full_per_hour * 1e6,
    )


def _notes(q: Question, static: Way) -> tuple[str, ...]:
    """What the figures alone don't say."""
    notes = []
    wait = static.wait
    if wait is not None and math.isinf(wait.slot_wait_s):
        notes.append(
            f"{wait.holding} adapters are asked for so often that they keep all {q.slots} slots: vLLM lets requests "
            "of active adapters overtake, so the others starve. More slots, or a limit in front of the engine, are "
            "needed."
        )
    elif wait is not None and wait.active > q.slots:
        notes.append(
            f"This traffic would have {wait.active:.0f} adapters active at once, and there are {q.slots} slots: these "
            "set the wait, not the GPU."
        )
    if q.adapter.rank != slot_rank(q.adapter.rank):
        notes.append(f"vLLM has no slots of rank {q.adapter.rank}: they are of rank {slot_rank(q.adapter.rank)}.")
    if static.memory.fits:
        notes.append("Any number: as many as main memory holds adapters or vectors of.")
    else:
        notes.append("With these slots not one request of this context length fits beside the weights.")
    return tuple(notes)
