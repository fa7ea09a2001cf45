"""What the steering expression costs on an NVIDIA GPU: `python -m benchmarks.fused_gpu`.

A decode step of a stack of decoder blocks in Llama-3.1-8B's shapes, random weights, under torch.compile and CUDA
graphs, three times over the same weights: without steering (`stock`), with the plugin's expression
`h + bank[slots[row_of_token]]` after each block (`traced`), and with the same addition inside a custom op that the
compiler can't look into (`opaque`). Every token has a row of its own, at every block: the most there can be to add.

Needs torch with Triton, numpy and rich, and no vLLM. As in vLLM, attention is an opaque op that keeps its KV to itself,
the residual stream is handed on in two halves, one compilation serves every batch but 1, and each batch has a graph
of its own. No GPU is at hand where this repository is tested: figures from it are not from CI, which only runs
the same path with `--device cpu --layers 2 --batches 1,4` (no CUDA graphs; its times say nothing about a GPU).
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.machine import describe_machine
from steerguard.bank import SteeringBank

RESULTS = Path(__file__).parent / "results" / "fused_gpu.json"
HIDDEN = 4096
INTERMEDIATE = 14336
HEADS = 32
KV_HEADS = 8
HEAD_DIM = HIDDEN // HEADS
LAYERS = 32
DTYPE = torch.bfloat16
CONTEXT_TOKENS = 128
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
VARIANTS = ("stock", "traced", "opaque")
NO_GPU_STATUS = 2
ROUNDING = 0.1  # relative distance that bfloat16 may put between the same sums fused and unfused, over all blocks

# Where attention finds its cached keys and values, [2, batch, KV_HEADS, CONTEXT_TOKENS, HEAD_DIM] for each block: not
# among its arguments, as in vLLM, so that the compiler neither copies nor orders them.
_kv: list[Tensor] = []

Run = Callable[[], Any]
Samples = dict[str, dict[str, list[float]]]  # batch -> variant -> milliseconds a step, one entry a round


@torch.library.custom_op("steerguard_bench::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    """One new token for each sequence: [batch, heads · HEAD_DIM] of queries, keys and values."""
    batch = q.shape[0]
    keys, values = _kv[block][:, :batch]
    keys[:, :, -1] = k.view(batch, KV_HEADS, HEAD_DIM)
    values[:, :, -1] = v.view(batch, KV_HEADS, HEAD_DIM)
    queries = q.view(batch, HEADS, 1, HEAD_DIM)
    return F.scaled_dot_product_attention(queries, keys, values, enable_gqa=True).reshape(batch, HIDDEN)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, block: int) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("steerguard_bench::add_rows", mutates_args=())
def add_rows(residual: Tensor, bank: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """The steering expression where the compiler can't see it."""
    return residual + bank[slots[rows]]


@add_rows.register_fake
def _(residual: Tensor, bank: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    return torch.empty_like(residual)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class Block(nn.Module):
    """A Llama decoder block that hands on `hidden_states` and `residual`, as vLLM's do."""

    cos: Tensor
    sin: Tensor

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.input_norm, self.post_norm = RmsNorm(), RmsNorm()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * INTERMEDIATE, bias=False)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)
        angles = CONTEXT_TOKENS / 500_000 ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + hidden
        qkv = self.qkv(self.input_norm(residual))
        q, k, v = qkv.split((HIDDEN, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM), dim=-1)
        residual = residual + self.out(attend(self.rotate(q), self.rotate(k), v.contiguous(), self.index))
        gate, up = self.gate_up(self.post_norm(residual)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up), residual

    def rotate(self, x: Tensor) -> Tensor:
        one, other = x.view(x.shape[0], -1, HEAD_DIM).chunk(2, dim=-1)
        turned = torch.cat((one * self.cos - other * self.sin, other * self.cos + one * self.sin), dim=-1)
        return turned.reshape(x.shape)


class Stack(nn.Module):
    """The blocks, steered in one of the three ways."""

    bank: Tensor
    slots: Tensor
    row_of_token: Tensor

    def __init__(self, blocks: nn.ModuleList, variant: str, bank: SteeringBank) -> None:
        super().__init__()
        self.blocks, self.variant = blocks, variant
        self.norm = RmsNorm()
        self.register_buffer("bank", bank.bank)
        self.register_buffer("slots", bank.slots)
        self.register_buffer("row_of_token", bank.row_of_token)

    def forward(self, hidden: Tensor) -> Tensor:
        residual = torch.zeros_like(hidden)
        for index, block in enumerate(self.blocks):
            hidden, residual = block(hidden, residual)
            rows = self.row_of_token[: residual.shape[0]]
            if self.variant == "traced":
                residual = residual + self.bank[self.slots[index][rows]]
            elif self.variant == "opaque":
                residual = add_rows(residual, self.bank, self.slots[index], rows)
        return self.norm(residual + hidden)


class Bench:
    """The weights, the buffers and the three compiled stacks over them."""

    def __init__(self, device: torch.device, layers: int, max_batch: int) -> None:
        self.device = device
        torch.manual_seed(0)
        with torch.device(device):
            torch.set_default_dtype(DTYPE)
            blocks = nn.ModuleList(Block(index) for index in range(layers))
            _kv[:] = [torch.randn(2, max_batch, KV_HEADS, CONTEXT_TOKENS, HEAD_DIM) for _ in range(layers)]
            self.inputs = torch.randn(max_batch, HIDDEN)
            torch.set_default_dtype(torch.float32)
        self.bank = SteeringBank(
            blocks=range(layers),
            hidden_size=HIDDEN,
            max_rows=max_batch,
            max_slots=max_batch * layers,
            max_tokens=max_batch,
            dtype=DTYPE,
            device=device,
        )
        rng = np.random.default_rng(0)
        for row in range(max_batch):
            values = {block: rng.standard_normal(HIDDEN, np.float32) for block in range(layers)}
            self.bank.place({str(row): values}, keep=())
        self.rows = np.array([self.bank.row(str(row)) for row in range(max_batch)], np.int32)
        stacks = {
            variant: Stack(blocks, variant, self.bank).to(device, DTYPE).requires_grad_(False) for variant in VARIANTS
        }
        self.compiled = {variant: torch.compile(stack, fullgraph=True) for variant, stack in stacks.items()}

    def runs(self, batch: int) -> tuple[dict[str, Run], dict[str, Tensor]]:
        """What runs one decode step of each variant, and where its output is found afterwards."""
        steps: dict[str, Run] = {}
        outputs: dict[str, Tensor] = {}
        self.bank.write_rows(self.rows[:batch])
        for variant, stack in self.compiled.items():
            inputs = self.inputs[:batch].clone()
            if batch > 1:  # a batch of one is always compiled for itself
                torch._dynamo.maybe_mark_dynamic(inputs, 0)
            if self.device.type == "cuda":
                steps[variant], outputs[variant] = capture(stack, inputs)
            else:
                output = outputs[variant] = torch.empty_like(inputs)

                def step(stack: Any = stack, inputs: Tensor = inputs, output: Tensor = output) -> None:
                    output.copy_(stack(inputs))

                steps[variant] = step
        return steps, outputs

    def check(self, batch: int, steps: dict[str, Run], outputs: dict[str, Tensor]) -> None:
        """Both ways of steering add the same, and what they add is what the buffers say when they run."""
        for step in steps.values():
            step()
        stock, traced, opaque = (outputs[variant].clone() for variant in VARIANTS)
        assert distance(traced, opaque) < ROUNDING, "the two ways of steering differ"
        assert distance(traced, stock) > 3 * ROUNDING, "nothing was steered"
        self.bank.clear_rows()
        for variant in ("traced", "opaque"):
            steps[variant]()
            assert distance(outputs[variant], stock) < ROUNDING, f"{variant} adds what the rows don't say"
        self.bank.write_rows(self.rows[:batch])


def capture(stack: Any, inputs: Tensor) -> tuple[Run, Tensor]:
    """A CUDA graph of one step."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            stack(inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = stack(inputs)
    return graph.replay, output


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).norm() / other.float().norm())


def time_ms(step: Run, repeats: int, device: torch.device) -> float:
    """Milliseconds a step, over `repeats` of them."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(repeats):
            step()
        return (time.perf_counter() - began) * 1e3 / repeats
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def measure(bench: Bench, batches: list[int], rounds: int, repeats: int, say: Callable[[str], None]) -> Samples:
    """In each round every variant once, in an order that is turned from round to round."""
    samples: Samples = {}
    for batch in batches:
        steps, outputs = bench.runs(batch)
        bench.check(batch, steps, outputs)
        for step in steps.values():
            time_ms(step, repeats, bench.device)  # warm-up
        taken: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for index in range(rounds):
            for variant in VARIANTS if index % 2 == 0 else VARIANTS[::-1]:
                taken[variant].append(time_ms(steps[variant], repeats, bench.device))
        samples[str(batch)] = taken
        say(f"batch {batch}: {statistics.median(taken['stock']):.3f} ms a step without steering")
    return samples


def over_stock(taken: dict[str, list[float]], variant: str) -> dict[str, float]:
    """A variant's time over stock's in the same round: median, and where the middle half of the rounds lies."""
    ratios = [a / b for a, b in zip(taken[variant], taken["stock"], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {"median": median, "low": low, "high": high}


def print_table(samples: Samples, title: str) -> None:
    table = Table(title=title, caption="time over stock's in the same round: median (middle half of the rounds)")
    for column in ("batch", "stock ms", "traced ms", "opaque ms", "traced over stock", "opaque over stock"):
        table.add_column(column, justify="right")
    for batch, taken in samples.items():
        ratios = (over_stock(taken, variant) for variant in VARIANTS[1:])
        table.add_row(
            batch,
            *(f"{statistics.median(taken[variant]):.3f}" for variant in VARIANTS),
            *(f"{r['median']:.4f} ({r['low']:.4f}–{r['high']:.4f})" for r in ratios),
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--layers", type=int, default=LAYERS, help="decoder blocks; each takes 0.44 GB, and its KV")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="sequences in a decode step")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--repeats", type=int, default=20, help="steps in one sample")
    parser.add_argument("--output", type=Path, help=f"JSON file; on a GPU {RESULTS.name} beside the others")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no NVIDIA GPU is at hand: nothing measured (--device cpu runs the same path)", file=sys.stderr)
        raise SystemExit(NO_GPU_STATUS)
    device = torch.device(options.device)
    batches = [int(batch) for batch in options.batches.split(",")]
    machine = describe_machine()
    name = torch.cuda.get_device_name() if device.type == "cuda" else machine["processor"]
    console = Console(stderr=True)
    console.print(f"{options.layers} blocks on {name}; compiling takes minutes")
    bench = Bench(device, options.layers, max(batches))
    samples = measure(bench, batches, options.rounds, options.repeats, console.print)
    print_table(samples, f"Llama-3.1-8B shapes, {options.layers} blocks, bf16, decode on {name}")
    result = {
        "machine": machine,
        "device": {"name": name, "cuda": torch.version.cuda, "cuda_graphs": device.type == "cuda"},
        "layers": options.layers,
        "context_tokens": CONTEXT_TOKENS,
        "repeats": options.repeats,
        "summary": {
            f"{variant}_over_stock": {batch: over_stock(taken, variant) for batch, taken in samples.items()}
            for variant in VARIANTS[1:]
        },
        "samples_ms": samples,
    }
    output = options.output or (RESULTS if device.type == "cuda" else None)
    if output is not None:
        output.parent.mkdir(exist_ok=True)
        output.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"written to {output}")


if __name__ == "__main__":
    main()
