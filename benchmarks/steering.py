"""`make bench-steering`: what steering costs, beside stock vLLM and beside multi-LoRA, on this machine.

Engines are loaded side by side and driven in turn: in each round every one of them runs every batch, in an order that
is turned round from round to round, and a round's figures are compared with one another only. An idle engine keeps
spinning on its core for a second after its last step, so each turn begins with a pause and an uncounted call.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.adapters import write_adapters
from benchmarks.contestant import ADAPTERS
from benchmarks.machine import describe_machine
from steerguard.bank import SteeringBank

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
RESULTS = Path(__file__).parent / "results" / "steering.json"
PAUSE_S = 2.5
TOKENS = 64
BLENDS = (1, 50, 256)  # distinct ones
ROUNDS, QUICK_ROUNDS = 7, 2
BATCHES, QUICK_BATCHES = (1, 8, 64, 256), (1, 8, 64)
LORA_BATCHES = (1, 8, 64)  # at 256 one run of vLLM's CPU LoRA path takes minutes

Samples = dict[str, dict[str, list[dict[str, float]]]]  # contestant -> batch -> one entry a round

console = Console(stderr=True)


class Engine:
    """A contestant's process."""

    def __init__(self, kind: str, folder: Path | None = None) -> None:
        self.kind = kind
        self.log = ROOT / "var" / "logs" / f"bench-{kind}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "VLLM_PLUGINS": "steerguard" if kind == "steering" else "",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        command = [sys.executable, "-m", "benchmarks.contestant", str(MODEL), kind, *([str(folder)] if folder else [])]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the {self.kind} engine stopped; see {self.log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.read()

    def take_turn(self) -> None:
        """Lets the engine before come to rest, and this one wake up."""
        time.sleep(PAUSE_S)
        self.ask("generate", batch=4, tokens=8, distinct=0)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()


def variants(kind: str) -> dict[str, int]:
    """What is measured on an engine: name -> distinct blends or adapters."""
    if kind == "steering":
        return {"idle": 0, **{f"steered {n}": n for n in BLENDS}}
    return {kind: ADAPTERS if kind.startswith("lora") else 0}


def batches_of(kind: str, batches: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b for b in batches if b in LORA_BATCHES) if kind.startswith("lora") else batches


def run_rounds(engines: list[Engine], rounds: int, batches: tuple[int, ...]) -> Samples:
    samples: Samples = {}
    for round_index in range(rounds):
        turn = engines if round_index % 2 == 0 else engines[::-1]
        for engine in turn:
            engine.take_turn()
            for batch in batches_of(engine.kind, batches):
                for name, distinct in variants(engine.kind).items():
                    figures = engine.ask("generate", batch=batch, tokens=TOKENS, distinct=distinct)
                    samples.setdefault(name, {}).setdefault(str(batch), []).append(figures)
        console.print(f"round {round_index + 1} of {rounds} done")
    return samples


def ratio(samples: Samples, one: str, other: str, batch: str, figure: str) -> float:
    """Median over rounds of one contestant's figure over another's in the same round."""
    pairs = zip(samples[one][batch], samples[other][batch], strict=True)
    return statistics.median(a[figure] / b[figure] for a, b in pairs)


def summarize(samples: Samples, extra: dict[str, Any]) -> dict[str, Any]:
    batches = list(samples["stock"])
    steered = [f"steered {n}" for n in BLENDS]
    speed = "tokens_per_s"
    lora = f"lora-{ADAPTERS}"
    return {
        "idle_over_stock": {b: ratio(samples, "idle", "stock", b, speed) for b in batches},
        "steered_over_stock": {b: min(ratio(samples, s, "stock", b, speed) for s in steered) for b in batches},
        "distinct256_over_1": {b: ratio(samples, "steered 256", "steered 1", b, speed) for b in batches},
        "steering50_over_lora50": {b: ratio(samples, "steered 50", lora, b, speed) for b in samples.get(lora, {})},
        "ttft_over_stock": {b: max(ratio(samples, s, "stock", b, "ttft_ms") for s in steered) for b in batches},
        "bytes_50_vectors_llama8b": bytes_of_50_vectors(),
        "register_to_first_steered_ms": statistics.median(extra["register_ms"]),
        "shared_prefix_ttft_over_lora": statistics.median(extra["shared_prefix"]["steering"]["ttft_ms"])
        / statistics.median(extra["shared_prefix"][lora]["ttft_ms"]),
    }


def bytes_of_50_vectors() -> int:
    """Bytes of the very buffers an engine has for 50 requests with a one-block blend each, at Llama-3.1-8B's shape.

    As the plugin makes them with `--max-num-seqs 50`, 8192 batched tokens and STEERGUARD_MAX_BLEND_LAYERS=1.
    """
    rows = 2 * 50
    bank = SteeringBank(
        blocks=range(32),
        hidden_size=4096,
        max_rows=rows,
        max_slots=rows,
        max_tokens=8192,
        dtype=torch.bfloat16,
        device="cpu",
    )
    return sum(t.untyped_storage().nbytes() for t in (bank.bank, bank.slots, bank.row_of_token))


def print_table(samples: Samples, memory: dict[str, Any]) -> None:
    table = Table(title=f"SmolLM2-135M, bf16, compiled, {TOKENS} tokens out; medians, and spread over rounds")
    for column in ("", "batch", "tok/s", "over stock", "TTFT ms", "inter-token ms"):
        table.add_column(column, justify="left" if not column else "right")
    for name, by_batch in samples.items():
        for batch, figures in by_batch.items():
            over = [
                a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(figures, samples["stock"][batch], strict=True)
            ]
            table.add_row(
                name,
                batch,
                f"{statistics.median(f['tokens_per_s'] for f in figures):.0f}",
                f"{statistics.median(over):.3f} ({min(over):.2f}–{max(over):.2f})",
                f"{statistics.median(f['ttft_ms'] for f in figures):.1f}",
                f"{statistics.median(f['inter_token_ms'] for f in figures):.2f}",
            )
    Console().print(table)
    base = memory["stock"]["resident_bytes"]
    for kind, held in memory.items():
        own = f", {held['steering_bytes'] / 2**20:.1f} MiB of it buffers" if held["steering_bytes"] else ""
        Console().print(f"{kind}: resident {(held['resident_bytes'] - base) / 2**20:+.0f} MiB over stock{own}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and batches, no 4-slot adapters")
    quick = parser.parse_args().quick
    if not MODEL.exists():
        raise SystemExit("no demo model: run `make model` first")
    machine = describe_machine()
    folder = ROOT / "var" / "bench-adapters"
    write_adapters(MODEL, folder, ADAPTERS)
    console.print("loading the engines (compiling takes a minute or two the first time) …")
    engines = [Engine("stock"), Engine("steering"), Engine(f"lora-{ADAPTERS}", folder)]
    if not quick:
        engines.append(Engine("lora-4", folder))
    try:
        for engine in engines:
            engine.read()
            console.print(f"{engine.kind} is ready")
        batches = QUICK_BATCHES if quick else BATCHES
        for engine in engines:  # warm-up, uncounted
            engine.take_turn()
            for distinct in variants(engine.kind).values():
                engine.ask("generate", batch=8, tokens=16, distinct=distinct)
        samples = run_rounds(engines, QUICK_ROUNDS if quick else ROUNDS, batches)
        extra: dict[str, Any] = {"shared_prefix": {}}
        for engine in engines:
            if engine.kind in ("steering", f"lora-{ADAPTERS}"):
                engine.take_turn()
                extra["shared_prefix"][engine.kind] = engine.ask("shared_prefix")
        engines[1].take_turn()
        extra["register_ms"] = [engines[1].ask("register")["register_to_first_steered_ms"] for _ in range(7)]
        memory = {engine.kind: engine.ask("memory") for engine in engines}
    finally:
        for engine in engines:
            engine.stop()
    summary = summarize(samples, extra)
    print_table(samples, memory)
    Console().print_json(json.dumps(summary))
    result = {
        "machine": machine,
        "quick": quick,
        "model": MODEL.name,
        "tokens": TOKENS,
        "summary": summary,
        "memory": memory,
        **extra,
        "samples": samples,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
