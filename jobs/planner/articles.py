"""The arithmetic of the three articles, done again: what adds up, and what doesn't.

Each finding quotes a sentence, says what it claims as a number, and what this package's own functions make of it.
"""

from dataclasses import dataclass

from jobs.planner.adapters import AdapterShape, adapter_bytes, slot_bytes
from jobs.planner.hardware import BUSES, Hardware
from jobs.planner.memory import divide_memory
from jobs.planner.popularity import lru_hit_rate, popularity
from jobs.planner.shape import ATTENTION_MODULES, LINEAR_MODULES, PRESETS
from jobs.planner.vectors import steering_bytes

STEERGUARD = "vLLM & SGLang High-Throughput Steering (the SteerGuard article)"
SWITCHING = "S-LoRA vs Multi-LoRA Serving in vLLM: Benchmarking Adapter Switching Latency at Scale"
SERVING = "Serving Text Adapters with vLLM"

ATTENTION_16 = AdapterShape(16, ATTENTION_MODULES)
ALL_16 = AdapterShape(16, LINEAR_MODULES)
LLAMA_8B, LLAMA_70B, LLAMA_70B_AWQ = (PRESETS[f"llama-{n}"] for n in ("3.1-8b", "3.3-70b", "3.3-70b-awq"))
QWEN_7B = PRESETS["qwen2.5-7b"]


@dataclass(frozen=True)
class Finding:
    """A sentence of an article, beside what recomputing it gives."""

    article: str
    sentence: str
    recomputed: str
    adds_up: bool


def findings() -> list[Finding]:
    """Everything in the articles that can be recomputed, in their order."""
    return [*_steerguard(), *_switching(), *_serving()]


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.2f} GB"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _steerguard() -> list[Finding]:
    in_float32 = LLAMA_8B.hidden * 4
    rank_28 = AdapterShape(28, ATTENTION_MODULES)
    rank_32 = AdapterShape(32, ATTENTION_MODULES)
    buffers = steering_bytes(
        LLAMA_8B, personas=50, vectors_per_persona=1, layers_per_vector=1, max_seqs=50, max_batched_tokens=8192
    )
    three = 50 * 3 * in_float32
    usual = steering_bytes(
        LLAMA_8B, personas=50, vectors_per_persona=1, layers_per_vector=1, max_seqs=256, max_batched_tokens=8192,
        limit_layers=False,
    )  # fmt: skip
    each = 2.4e9 / 50
    return [
        Finding(
            STEERGUARD,
            "pre-loaded Float32 residual additions (≈ 8 KB per vector)",
            f"A row of Llama-3.1-8B has {LLAMA_8B.hidden:,} numbers: {in_float32:,} bytes in float32. 8 KB "
            f"({LLAMA_8B.hidden * 2:,} bytes) is the row in bfloat16, as the engine holds it, and of one block.",
            False,
        ),
        Finding(
            STEERGUARD,
            "~2.4 GB (Adapter Weights) for 50 adapters",
            f"That is {_mb(each)} each. The article names neither rank nor modules; on Llama-3.1-8B rank 28 of q, k, "
            f"v, o gives {_gb(50 * adapter_bytes(LLAMA_8B, rank_28))}, a rank that vLLM has no slots of. Usual ones: "
            f"rank 16 of q, k, v, o {_gb(50 * adapter_bytes(LLAMA_8B, ATTENTION_16))}, rank 32 "
            f"{_gb(50 * adapter_bytes(LLAMA_8B, rank_32))}, rank 16 of all linear layers "
            f"{_gb(50 * adapter_bytes(LLAMA_8B, ALL_16))}.",
            False,
        ),
        Finding(
            STEERGUARD,
            "< 1 MB (Residual Tensors) for 50 vectors",
            f"50 vectors of one block: {50 * in_float32:,} bytes in float32; the engine's buffers for 50 requests at "
            f"once, index included, {buffers.allocated:,}. It holds for one block a vector and such an engine: three "
            f"blocks are {three / 1e6:.1f} MB, and with vLLM's 256 requests and the plugin's defaults "
            f"{usual.allocated / 1e6:.0f} MB are set aside.",
            True,
        ),
        Finding(
            STEERGUARD,
            "Adapter Swap Latency 12ms – 35ms per batch switch",
            f"{_mb(each)} in 12 to 35 ms are {each / 0.035 / 1e9:.1f} to {each / 0.012 / 1e9:.1f} GB/s. PCIe 4 takes "
            f"{BUSES['pcie4'].transfer_s(each) * 1e3:.1f} ms and PCIe 5 {BUSES['pcie5'].transfer_s(each) * 1e3:.1f} "
            "ms, so this is not the bus; it also contradicts the other article's 0.85 ms for a larger adapter.",
            False,
        ),
        Finding(
            STEERGUARD,
            "~1,840 tok/s against ~2,410 tok/s (+31% higher)",
            f"2,410 / 1,840 = {2410 / 1840:.3f}.",
            True,
        ),
        Finding(
            STEERGUARD,
            "Multi-Tenancy at O(1) Cost",
            "On the GPU, yes: the buffers are made for the requests at once, whatever the number of personas. Main "
            f"memory grows by {in_float32:,} bytes a vector and block.",
            True,
        ),
    ]  # fmt: skip


def _switching() -> list[Finding]:
    real = adapter_bytes(LLAMA_70B, ATTENTION_16)
    every = adapter_bytes(LLAMA_70B, ALL_16)
    smallest = adapter_bytes(LLAMA_70B, AdapterShape(16, ("q_proj", "v_proj")))
    fits = adapter_bytes(LLAMA_8B, ATTENTION_16, itemsize=4)
    h100 = Hardware()
    left = divide_memory(LLAMA_70B_AWQ, h100, context_tokens=1024, extras_bytes=0)
    pcie4, pcie5 = BUSES["pcie4"], BUSES["pcie5"]
    return [
        Finding(
            SWITCHING,
            "a rank-16 adapter (approx. 55MB) of a base Llama 3.3 70B",
            f"Rank 16 on the 70B is {_mb(smallest)} with q and v alone, {_mb(real)} with q, k, v, o and {_mb(every)} "
            "with all linear layers, in 16 bits. 55 MB is the same adapter (q, k, v, o) of Llama-3.1-8B in float32: "
            f"{_mb(fits)}.",
            False,
        ),
        Finding(
            SWITCHING,
            "On PCIe Gen 5 (64 GB/s): Transferring a rank-16 adapter (approx. 55MB) takes 0.85ms",
            f"55 MB / 64 GB/s = {pcie5.transfer_s(55e6, peak=True) * 1e3:.2f} ms, at the bus's peak; at the "
            f"{pcie5.effective_bytes_per_s / 1e9:.1f} GB/s that were measured {pcie5.transfer_s(55e6) * 1e3:.2f} ms. "
            f"The {_mb(real)} that such an adapter has take {pcie5.transfer_s(real) * 1e3:.1f} ms.",
            True,
        ),
        Finding(
            SWITCHING,
            "On PCIe Gen 4 (32 GB/s): … P99 adapter swap latency to 9.4ms",
            f"55 MB take {pcie4.transfer_s(55e6, peak=True) * 1e3:.2f} ms at 32 GB/s. 9.4 ms would be "
            f"{55e6 / 0.0094 / 1e9:.1f} GB/s, a fifth of the bus: contention, as it says, but no figure of it is "
            "given.",
            False,
        ),
        Finding(
            SWITCHING,
            "mandate SXM5 or PCIe Gen 5 architectures to maintain sub-4ms adapter switching",
            f"By size alone PCIe 4 keeps 55 MB under 4 ms too ({pcie4.transfer_s(55e6) * 1e3:.1f} ms), and all linear "
            f"layers of the 70B ({_mb(every)}) miss it on PCIe 5 ({pcie5.transfer_s(every) * 1e3:.1f} ms).",
            False,
        ),
        Finding(
            SWITCHING,
            "Unified paging … allocating fixed 16MB blocks",
            "A page of S-LoRA is one vector as wide as the model (arXiv 2311.03285; the code gives an adapter 4·rank "
            f"cells): {LLAMA_70B.hidden * 2:,} bytes, 16 KB, on a 70B. Blocks of 16 MB, which this planner takes as "
            "asked, lose up to a block an adapter and half a block a request.",
            False,
        ),
        Finding(
            SWITCHING,
            "out-of-memory (OOM) aborts after serving as few as 14 concurrent adapters, even when 35GB … remained "
            "unallocated",
            f"14 adapters of 55 MB are {_gb(14 * 55e6)}. To leave 35 GB unusable, each would have to block "
            f"{_gb(35e9 / 14)}, {35e9 / 14 / 55e6:.0f} times its size.",
            False,
        ),
        Finding(
            SWITCHING,
            "more than 50 active LoRA adapters that cannot fit simultaneously in GPU HBM",
            f"The 70B in 4 bits ({_gb(LLAMA_70B_AWQ.weight_bytes)}) leaves {_gb(left.left)} of an 80 GB GPU. All 100 "
            f"adapters are {_gb(100 * 55e6)} by the article's size and {_gb(100 * real)} by their own: they fit. What "
            "runs out is `max_loras`.",
            False,
        ),
        Finding(
            SWITCHING,
            "200 concurrent worker threads … across 5,000 total inference requests",
            "The script starts 500 requests at once, over up to 250 connections, with no threads. The table of "
            "results is missing from the article, so it has no figures that could be compared.",
            False,
        ),
    ]  # fmt: skip


def _serving() -> list[Finding]:
    all_of_three = 3 * adapter_bytes(QWEN_7B, ALL_16)
    small = divide_memory(QWEN_7B, Hardware(gpu_gib=24), context_tokens=4096, extras_bytes=all_of_three)
    slots = slot_bytes(QWEN_7B, ALL_16)
    large = divide_memory(QWEN_7B, Hardware(gpus=2), context_tokens=4096, extras_bytes=0)
    hits = lru_hit_rate(popularity(50), 4)
    return [
        Finding(
            SERVING,
            "If --max-loras 4 and you try to load a 5th, vLLM returns a 503",
            "vLLM 0.32 queues it: measured, the fifth waited 10.8 s for a running adapter to end, and 55.0 s under "
            "staggered clients, while others overtook it. No error.",
            False,
        ),
        Finding(
            SERVING,
            "qwen25-extract=/path/to/mistral-7b-json-extract, qwen25-sql=/path/to/phi3-mini-sql-helper",
            f"Adapters of other models: Mistral-7B is {PRESETS['mistral-7b'].hidden} wide and Phi-3-mini 3072, "
            f"Qwen2.5-7B {QWEN_7B.hidden}. They don't load, as the article's own \"must match the base model "
            "exactly\" says.",
            False,
        ),
        Finding(
            SERVING,
            "Single GPU (24 GB): Base model + 2–3 adapters, batch size 8–16",
            f"Qwen2.5-7B and three rank-16 adapters on all linear layers ({_gb(all_of_three)}) leave "
            f"{_gb(small.left)}, {small.batch} requests of 4,096 tokens. {int(small.left // 2 // slots)} slots of "
            f"{_mb(slots)} take half of that: memory doesn't stop at three.",
            False,
        ),
        Finding(
            SERVING,
            "Multi-GPU (2x A100, 80 GB): Base model + 4–8 adapters, batch size 32+",
            f"Each GPU has {_gb(large.left)} left, and eight adapters are {_gb(8 * adapter_bytes(QWEN_7B, ALL_16))}: "
            f"{large.batch:,} requests of 4,096 tokens fit.",
            False,
        ),
        Finding(
            SERVING,
            'keep the number of "hot" adapters (actively used) ≤ 4',
            f"With four slots and 50 adapters asked for equally, {hits:.0%} of requests find theirs on the GPU. The "
            "figures after "
            '"Performance still degrades with many active adapters in a batch:" are missing.',
            True,
        ),
    ]  # fmt: skip
