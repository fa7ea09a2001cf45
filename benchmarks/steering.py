"""`make bench-steering`: what steering costs, beside stock vLLM, multi-LoRA and other ways to steer, on this machine.

Engines are loaded side by side and driven in turn. All that is compared at one batch size follows each other at once,
in an order that is turned round from round to round, and figures of one round are compared with one another only: the
machine's pace changes over minutes. An idle engine keeps spinning on its core for a second after its last step, so
each turn begins with a pause and an uncounted call.

There are two sessions with a stock engine each, because all contestants together don't fit in 24 GB.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.adapters import write_adapters
from benchmarks.contestant import ADAPTERS
from benchmarks.driver import ROOT, Driven, Stopped, all_cores
from benchmarks.machine import describe_machine
from steerguard.bank import SteeringBank

MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
ADAPTER_FOLDER = ROOT / "var" / "bench-adapters"
RESULTS = Path(__file__).parent / "results" / "steering.json"
TOKENS = 64
BLENDS = (1, 50, 256)  # distinct ones
LORA = f"lora-{ADAPTERS}"
REGISTRATIONS = 7

Samples = dict[str, dict[str, list[dict[str, float]]]]  # row -> batch -> one entry a round

console = Console(stderr=True)
STARTED_S = time.monotonic()


@dataclass(frozen=True)
class Contestant:
    """An engine, and what is measured of it."""

    kind: str
    variants: dict[str, int]  # row -> distinct blends or adapters
    batches: tuple[int, ...]
    askers: int = 0  # personas, or adapters, that ask behind a shared prefix in each round
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    note: str = ""
    is_peer: bool = False  # left out, with a line that says so, where it doesn't start or doesn't steer

    def start(self) -> Driven:
        own = [sys.executable, "-m", "benchmarks.contestant", str(MODEL), self.kind]
        if self.kind.startswith("lora-"):
            own.append(str(ADAPTER_FOLDER))
        plugin = {"VLLM_PLUGINS": "steerguard" if self.kind == "steering" else ""}
        return Driven(self.kind, self.command or own, plugin | self.environment)


@dataclass
class Session:
    """What one set of engines is asked, and what came of it."""

    contestants: list[Contestant]
    rounds: int
    repeats: dict[int, int]  # runs of a batch in one turn, of which the median counts
    pause_s: float = 2.5  # between engines
    warm_up: int = ADAPTERS  # distinct blends or adapters that each engine uses before anything counts
    until_s: float = math.inf  # no part of a further round is begun that would end later, counted from the start
    samples: Samples = field(default_factory=dict)
    shared_prefix: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    register_ms: list[float] = field(default_factory=list)
    part_took_s: dict[str, float] = field(default_factory=dict)  # part of a round -> the last time that it was run

    def run(self) -> None:
        say(f"loading {', '.join(c.kind for c in self.contestants)} (the first time they compile for some minutes) …")
        together = [(contestant, contestant.start()) for contestant in self.contestants]
        engines = [engine for _, engine in together]
        try:
            with all_cores(engines):
                together = [(contestant, engine) for contestant, engine in together if _is_ready(contestant, engine)]
            for contestant, engine in together:
                engine.take_turn(self.pause_s)
                for distinct in contestant.variants.values():
                    engine.ask("generate", batch=max(8, min(distinct, self.warm_up)), tokens=8, distinct=distinct)
            for index in range(self.rounds):
                if not self._has_time(min(self.part_took_s.values(), default=-math.inf)):
                    break
                began_s = time.monotonic()
                self._run_round(index, together if index % 2 == 0 else together[::-1])
                say(f"round {index + 1} of {self.rounds}: {time.monotonic() - began_s:.0f} s")
            for _, engine in together:
                if engine.kind == "steering":
                    engine.take_turn(self.pause_s)
                    answers = [engine.ask("register") for _ in range(REGISTRATIONS)]
                    self.register_ms = [answer["register_to_first_steered_ms"] for answer in answers]
                self.memory[engine.kind] = engine.ask("memory")
        finally:
            for engine in engines:
                engine.dismiss()
            for engine in engines:
                engine.stop()

    def _run_round(self, index: int, together: list[tuple[Contestant, Driven]]) -> None:
        for batch in sorted({batch for contestant, _ in together for batch in contestant.batches}):
            with self._part(f"batch {batch}") as has_time:
                if has_time:
                    self._run_batch(batch, index, together)
        with self._part("shared prefix") as has_time:
            if has_time:
                self._ask_behind_prefix(index, together)

    @contextlib.contextmanager
    def _part(self, name: str) -> Iterator[bool]:
        """Gives whether there is time for this part of a round; each is run at least once."""
        began_s = time.monotonic()
        has_time = self._has_time(self.part_took_s.get(name, -math.inf))
        yield has_time
        if has_time:
            self.part_took_s[name] = time.monotonic() - began_s

    def _has_time(self, for_s: float) -> bool:
        return time.monotonic() - STARTED_S + for_s <= self.until_s

    def _run_batch(self, batch: int, index: int, together: list[tuple[Contestant, Driven]]) -> None:
        for contestant, engine in together:
            if batch not in contestant.batches:
                continue
            engine.take_turn(self.pause_s)
            rows = list(contestant.variants.items())
            for row, distinct in rows if index % 2 == 0 else rows[::-1]:
                runs = [
                    engine.ask("generate", batch=batch, tokens=TOKENS, distinct=distinct)
                    for _ in range(self.repeats.get(batch, 1))
                ]
                median = {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
                self.samples.setdefault(row, {}).setdefault(str(batch), []).append(median)

    def _ask_behind_prefix(self, index: int, together: list[tuple[Contestant, Driven]]) -> None:
        for contestant, engine in together:
            if count := contestant.askers:
                engine.take_turn(self.pause_s)
                for figure, values in engine.ask("shared_prefix", first=index * count, count=count).items():
                    self.shared_prefix.setdefault(contestant.kind, {}).setdefault(figure, []).extend(values)


def main_session(*, quick: bool) -> Session:
    steered = {"idle": 0, **{f"steered {n}": n for n in BLENDS}}
    # At 256, and in the quick run at 64, one batch of vLLM's CPU LoRA path takes minutes.
    batches, lora_batches = ((1, 8, 64), (8,)) if quick else ((1, 8, 64, 256), (1, 8, 64))
    # Compiling a third engine would take a third of the time that the quick run has.
    lora_environment = {"BENCH_EAGER": "1"} if quick else {}
    contestants = [
        Contestant("stock", {"stock": 0}, batches),
        Contestant("steering", steered, batches, askers=8),
        Contestant(LORA, {LORA: ADAPTERS}, lora_batches, 1 if quick else 3, environment=lora_environment),
    ]
    if quick:
        return Session(contestants, rounds=3, repeats={}, pause_s=1.5, warm_up=8, until_s=270.0)
    return Session(contestants, rounds=7, repeats={1: 3, 8: 3})


def peers_session() -> Session:
    """Those of which a rough figure is enough: they are far away."""
    contestants = [
        Contestant("stock", {"stock": 0}, (1, 8, 64)),
        Contestant("lora-4", {"lora-4": ADAPTERS}, (1, 8, 64)),
    ]
    for peer in peers.available():
        command = peer.command(MODEL)
        contestants.append(
            Contestant(
                peer.kind,
                peer.variants,
                peer.batches,
                command=command,
                environment=peer.environment,
                note=peer.note,
                is_peer=True,
            )
        )
    return Session(contestants=contestants, rounds=3, repeats={1: 3, 8: 3})


def _is_ready(contestant: Contestant, engine: Driven) -> bool:
    """Waits for an engine. Raises Stopped, but for a peer."""
    try:
        engine.read()
        effect = engine.ask("effect") if contestant.is_peer else None
    except Stopped as stopped:
        if not contestant.is_peer:
            raise
        say(f"left out: {stopped}")
        return False
    if effect is not None and effect["changed"] <= effect["changed_unsteered"]:
        say(f"left out: {engine.kind} didn't steer")
        return False
    say(f"{engine.kind} is ready")
    return True


def say(text: str) -> None:
    console.print(f"{time.monotonic() - STARTED_S:5.0f} s  {text}", soft_wrap=True)


def ratios(samples: Samples, one: str, other: str, batch: str, figure: str) -> list[float]:
    """One row's figure over another's, round by round."""
    pairs = zip(samples[one][batch], samples[other][batch], strict=True)
    return [a[figure] / b[figure] for a, b in pairs]


def summarize(session: Session) -> dict[str, Any]:
    samples, speed = session.samples, "tokens_per_s"
    steered = [f"steered {n}" for n in BLENDS]

    def ratio(one: str, other: str, batch: str, figure: str = speed) -> float:
        return statistics.median(ratios(samples, one, other, batch, figure))

    batches = list(samples["stock"])
    first_token_ms = {kind: statistics.median(told["ttft_ms"]) for kind, told in session.shared_prefix.items()}
    return {
        "idle_over_stock": {b: ratio("idle", "stock", b) for b in batches},
        "steered_over_stock": {b: min(ratio(s, "stock", b) for s in steered) for b in batches},
        "distinct256_over_1": {b: ratio("steered 256", "steered 1", b) for b in batches},
        "steering50_over_lora50": {b: ratio("steered 50", LORA, b) for b in samples[LORA]},
        "ttft_over_stock": {b: max(ratio(s, "stock", b, "ttft_ms") for s in steered) for b in batches},
        "bytes_50_vectors_llama8b": bytes_of_50_vectors(),
        "register_to_first_steered_ms": statistics.median(session.register_ms),
        "shared_prefix_ttft_over_lora": first_token_ms["steering"] / first_token_ms[LORA],
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


def print_table(session: Session, title: str) -> None:
    table = Table(title=title)
    for column in ("", "batch", "tok/s", "over stock", "TTFT ms", "inter-token ms"):
        table.add_column(column, justify="left" if not column else "right")
    for row, by_batch in session.samples.items():
        for batch, figures in by_batch.items():
            over = ratios(session.samples, row, "stock", batch, "tokens_per_s")
            table.add_row(
                row,
                batch,
                f"{statistics.median(f['tokens_per_s'] for f in figures):.0f}",
                f"{statistics.median(over):.3f} ({min(over):.2f}–{max(over):.2f})",
                f"{statistics.median(f['ttft_ms'] for f in figures):.1f}",
                f"{statistics.median(f['inter_token_ms'] for f in figures):.2f}",
            )
    console = Console()
    console.print(table)
    for contestant in session.contestants:
        if contestant.note:
            console.print(f"{contestant.kind}: {contestant.note}")
    for kind, told in session.shared_prefix.items():
        first_token_ms, hits = statistics.median(told["ttft_ms"]), statistics.mean(told["cache_hit_rate"])
        console.print(f"{kind}: first token behind the shared prefix {first_token_ms:.0f} ms, cache hits {hits:.0%}")
    base = session.memory["stock"]["resident_bytes"]
    for kind, held in session.memory.items():
        own = f", {held['steering_bytes'] / 2**20:.1f} MiB of it buffers" if held.get("steering_bytes") else ""
        console.print(f"{kind}: resident {(held['resident_bytes'] - base) / 2**20:+.0f} MiB over stock{own}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same table from fewer samples, without peers")
    parser.add_argument("--only-peers", action="store_true", help="measure the peers, beside the figures there are")
    arguments = parser.parse_args()
    quick = arguments.quick
    if not MODEL.exists():
        raise SystemExit("no demo model: run `make model` first")
    machine = describe_machine()
    write_adapters(MODEL, ADAPTER_FOLDER, ADAPTERS)
    result: dict[str, Any]
    if arguments.only_peers:
        result = json.loads(RESULTS.read_text())
    else:
        main_run = main_session(quick=quick)
        main_run.run()
        result = {"machine": machine, "quick": quick, "model": MODEL.name, "tokens": TOKENS}
        result |= {"summary": summarize(main_run), **_as_json(main_run)}
        _write(result)
        print_table(main_run, f"SmolLM2-135M, bf16, compiled, {TOKENS} tokens out; medians, and spread over rounds")
    if not quick:
        others = peers_session()
        others.run()
        _write(result | {"peers": {"machine": machine, **_as_json(others)}})
        print_table(others, "Other ways, in a session with a stock engine of its own")
    Console().print_json(json.dumps(result["summary"]))
    say(f"written to {RESULTS.relative_to(ROOT)}; load average at the end {os.getloadavg()[0]:.1f}")


def _as_json(session: Session) -> dict[str, Any]:
    return {
        "contestants": {c.kind: {"note": c.note, "environment": _as_checked_out(c)} for c in session.contestants},
        "memory": session.memory,
        "shared_prefix": session.shared_prefix,
        "register_ms": session.register_ms,
        "samples": session.samples,
    }


def _as_checked_out(contestant: Contestant) -> dict[str, str]:
    """The contestant's environment, with paths from the repository's root on."""
    return {name: value.replace(str(ROOT), ".") for name, value in contestant.environment.items()}


def _write(result: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
