"""`make bench-extract`: pairs per second of an extraction beside a plain Hugging Face loop, on this machine.

The plain loop is the script one would write: one text at a time through the whole model, a forward hook on each block
that keeps the mean over the answer's tokens. Both have the same model object, in float32, the same pairs and the same
threads, and take turns in an order that is turned round from round to round. What they make is compared too: a quick
wrong vector wouldn't count.

A third row runs the plain loop in bfloat16, the demo checkpoint's own type, which transformers loads where a script
doesn't say: half the bytes, and other numbers.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from benchmarks.machine import describe_machine
from personas.demo.recipes import FOLDER
from steerguard.extraction.activations import LanguageModel, load_language_model
from steerguard.extraction.extract import extract_vector
from steerguard.extraction.pairs import Pair, read_pairs

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
RESULTS = Path(__file__).parent / "results" / "extract.json"
TARGET = 3.0

console = Console(stderr=True)


def plain_loop(model: Any, tokenizer: Any, blocks: Sequence[Any], pairs: Sequence[Pair]) -> np.ndarray:
    """The mean difference at every block, [blocks, hidden_size], one text at a time."""
    kept: dict[int, torch.Tensor] = {}
    start = 0

    def hook_of(index: int) -> Callable[..., None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            kept[index] = hidden[0, start:].float().mean(dim=0)

        return hook

    handles = [block.register_forward_hook(hook_of(index)) for index, block in enumerate(blocks)]
    sides: dict[str, list[torch.Tensor]] = {"positive": [], "negative": []}
    with torch.no_grad():
        for pair in pairs:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": pair.prompt}], add_generation_prompt=True, tokenize=False
            )
            head = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            start = len(head)
            for side, means in sides.items():
                answer = tokenizer(getattr(pair, side), add_special_tokens=False)["input_ids"]
                model(torch.tensor([head + answer]))
                means.append(torch.stack([kept[index] for index in range(len(blocks))]))
    for handle in handles:
        handle.remove()
    return (torch.stack(sides["positive"]) - torch.stack(sides["negative"])).mean(dim=0).numpy()


def extraction(language_model: LanguageModel, pairs: Sequence[Pair]) -> np.ndarray:
    """The same by the library: all blocks, nothing held out, nothing kept from before."""
    vector = extract_vector(language_model, pairs, layers=range(language_model.num_blocks), held_out=0).vector
    return np.stack(list(vector.layers.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of a fifth of the pairs")
    options = parser.parse_args()
    pairs = [pair for path in sorted((FOLDER / "pairs").glob("*.jsonl")) for pair in read_pairs(path)]
    rounds = options.rounds
    if options.quick:
        pairs, rounds = pairs[::5], 1
    language_model = load_language_model(MODEL)
    own_type = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).eval()
    rows: dict[str, Callable[[], np.ndarray]] = {
        "steerguard": lambda: extraction(language_model, pairs),
        "plain loop": lambda: plain_loop(
            language_model.model, language_model.tokenizer, list(language_model.blocks), pairs
        ),
        "plain loop, bfloat16": lambda: plain_loop(
            own_type, language_model.tokenizer, list(own_type.model.layers), pairs
        ),
    }
    made: dict[str, np.ndarray] = {}
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    extraction(language_model, pairs[:4])
    plain_loop(language_model.model, language_model.tokenizer, list(language_model.blocks), pairs[:2])
    for index in range(rounds):
        for name in list(rows) if index % 2 == 0 else list(rows)[::-1]:
            started_s = time.monotonic()
            made[name] = rows[name]()
            seconds[name].append(time.monotonic() - started_s)
        took = ", ".join(f"{name} {values[-1]:.1f} s" for name, values in seconds.items())
        console.print(f"round {index + 1} of {rounds}: {took}")
    result = summarize(pairs, seconds, made)
    show(result)
    if not options.quick:
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"written: {RESULTS.relative_to(ROOT)}")
    print(json.dumps({"times_plain_loop": result["times"]["plain loop"], "target": TARGET}))
    return 0 if result["least_cosine"]["plain loop"] > 0.9999 else 1


def summarize(pairs: Sequence[Pair], seconds: dict[str, list[float]], made: dict[str, np.ndarray]) -> dict[str, Any]:
    """Medians of pairs per second, and how many times the others' speed in the same round (median of the rounds)."""
    own = seconds["steerguard"]
    others = [name for name in seconds if name != "steerguard"]
    return {
        "machine": describe_machine() | {"torch_threads": torch.get_num_threads()},
        "model": MODEL.name,
        "pairs": len(pairs),
        "pairs_per_second": {
            name: round(len(pairs) / statistics.median(values), 2) for name, values in seconds.items()
        },
        "times": {
            name: round(statistics.median(other / mine for other, mine in zip(seconds[name], own, strict=True)), 2)
            for name in others
        },
        "target": TARGET,
        "least_cosine": {name: round(least_cosine(made["steerguard"], made[name]), 6) for name in others},
        "seconds": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
    }


def least_cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Of the blocks' vectors, the two that agree least."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / norms).min())


def show(result: dict[str, Any]) -> None:
    table = Table(title=f"{result['pairs']} pairs, {result['model']}, all blocks")
    for column in ("", "pairs/s", "SteerGuard is", "least cosine"):
        table.add_column(column, justify="right" if column else "left")
    for name, rate in result["pairs_per_second"].items():
        times, cosine = result["times"].get(name), result["least_cosine"].get(name)
        table.add_row(name, f"{rate:.2f}", f"{times:.2f}×" if times else "", f"{cosine:.5f}" if cosine else "")
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
