"""What others published about serving many adapters, with conditions and source, beside what was measured here.

Never compare rows: machines, models, versions and loads all differ.
"""

from dataclasses import dataclass

from jobs.planner.calibration import BASE, LORA, STEERED, Calibration


@dataclass(frozen=True)
class PublishedRow:
    """One figure: who, what, under which conditions, and where it stands. `measured`: by this installation."""

    system: str
    figure: str
    conditions: str
    source: str
    measured: bool = False


PUBLISHED = (
    PublishedRow(
        "LoRAX",
        "thousands of adapters on one GPU, latency and throughput nearly constant",
        "none stated",
        "LoRAX README, github.com/predibase/lorax",
    ),
    PublishedRow(
        "LoRAX",
        "25 adapters served from one GPU",
        "Mistral-7B, one A100 80 GB",
        "LoRA Land, arXiv 2405.00732; github.com/predibase/lora_bakeoff",
    ),
    PublishedRow(
        "LoRAX",
        "~35 tok/s with an adapter, ~69 without",
        "a user's run: Mistral-7B-OpenOrca, L40S 48 GB, 428 tokens in, one after another, adapter loaded",
        "github.com/predibase/lorax issue 333",
    ),
    PublishedRow(
        "S-LoRA",
        "up to 4× vLLM-packed, up to 30× PEFT, about 2,000 adapters on one GPU",
        "Llama 7B to 70B, ranks 8 to 64; vLLM-packed runs a merged copy per adapter",
        "S-LoRA: Serving Thousands of Concurrent LoRA Adapters, arXiv 2311.03285",
    ),
    PublishedRow(
        "Punica",
        "12× throughput, +2 ms a token",
        "7B, 13B and 70B, A100 cluster, against serving systems of 2023",
        "Punica: Multi-Tenant LoRA Serving, arXiv 2310.18547",
    ),
    PublishedRow(
        "vLLM",
        "2,694 tok/s without LoRA, 1,788 with one adapter and one slot, 1,792 with four slots",
        "Llama-2-7B, one A100, 1,000 ShareGPT prompts, rank 8, December 2024",
        "github.com/vllm-project/vllm pull 11267",
    ),
    PublishedRow(
        "vLLM",
        "884 tok/s with uniform, 2,167 with skewed traffic",
        "1,000 synthetic adapters, one GPU, May 2026",
        "Multi-LoRA at scale: an empirical map of vLLM's operating range, priyaltaneja.com",
    ),
    PublishedRow(
        "vLLM",
        "40 adapters of rank 16 on two GPUs",
        "Llama-3.1-8B, two A100, vLLM 0.6.3, max-loras 8, max-cpu-loras 64",
        "Serving 40 LoRA adapters on one base model: the throughput we got, dev.to",
    ),
    PublishedRow(
        "vLLM",
        "−8 % to −24 % throughput with LoRA",
        "Llama-3.1-8B, one TPU v6e, fixed lengths of 128 to 8k",
        "github.com/vllm-project/vllm pull 15655",
    ),
    PublishedRow(
        "vLLM",
        "the fifth adapter waited 10.8 s, and 55.0 s under staggered clients",
        "vLLM 0.32 on a CPU, SmolLM2-135M, max-loras 4, eager",
        "measured for this project, not by this installation",
    ),
    PublishedRow(
        "SteerGuard article",
        "1,840 tok/s with 50 adapters, 2,410 with 50 vectors (batch 64)",
        "Llama-3.1-8B; GPU, versions and lengths not stated",
        "vLLM & SGLang High-Throughput Steering",
    ),
)


def measured_rows(calibration: Calibration | None) -> tuple[PublishedRow, ...]:
    """What the file of this installation's benchmark says; nothing without one."""
    if calibration is None:
        return ()
    conditions = (
        f"{calibration.model}, {calibration.machine}, 32 tokens in, {calibration.output_tokens} out, "
        f"{calibration.measured_at[:10]}"
    )
    rows = []
    for row, name in ((BASE, "vLLM"), (STEERED, "SteerGuard"), (LORA, "vLLM multi-LoRA")):
        batches = calibration.medians.get(row, {})
        if batches:
            speeds = ", ".join(
                f"{figures['tokens_per_s']:,.0f} at {batch}" for batch, figures in sorted(batches.items())
            )
            figure = f"{speeds} at once (tok/s, {row})"
            rows.append(PublishedRow(name, figure, conditions, calibration.path.name, measured=True))
    size = calibration.summary.get("bytes_50_vectors_llama8b")
    if isinstance(size, int):
        figure = f"{size:,} bytes of buffers for 50 one-block vectors"
        rows.append(PublishedRow("SteerGuard", figure, "Llama-3.1-8B's shape", calibration.path.name, measured=True))
    return tuple(rows)
