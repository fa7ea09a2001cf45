"""`python -m steerguard extract`: a steering vector from contrastive pairs, or from two system prompts."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steerguard.command_line import answer, write_whole
from steerguard.extraction.pairs import Pair, pairs_digest, read_pairs, read_questions, write_pairs
from steerguard.extraction.progress import ShouldStop, Stopped, stop_signals

if TYPE_CHECKING:
    from steerguard.command_line import Commands
    from steerguard.extraction.extract import Extraction

ENGINE_KEY_VARIABLE = "STEERGUARD_ENGINE_KEY"
STOPPED = 130
"""Exit status of a command that was asked to stop, as shells have it for Ctrl-C."""


def register(commands: "Commands") -> None:
    extract = commands.add_parser(
        "extract",
        help="make a steering vector from contrastive pairs",
        description="Makes a steering vector from pairs of answers, or from answers that an engine gives under two "
        "system prompts. Run the same command again after an interruption: it goes on where it was.",
    )
    extract.add_argument(
        "pairs", type=Path, nargs="?", help="JSON Lines or CSV: prompt, positive, negative (or --questions)"
    )
    extract.add_argument("--model", required=True, help="folder or hub id of a Hugging Face causal model")
    extract.add_argument("--layers", default="all", help="0-based decoder blocks: 10,14 or 8-18 or all (default)")
    # Named here again because a parser must not load torch: tests hold them to the library's.
    extract.add_argument("--method", choices=("mean_difference", "pca", "logistic"), default="mean_difference")
    extract.add_argument("--tokens", choices=("response", "last", "all"), default="response", help="which are read")
    extract.add_argument("--held-out", type=float, default=0.2, help="share of pairs to measure on (default: 0.2)")
    extract.add_argument("--seed", type=int, default=0)
    extract.add_argument("--name", help="the vector's name (default: the pairs file's)")
    extract.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    extract.add_argument("--work", type=Path, help="where unfinished work is kept (default: OUT.work, then removed)")
    extract.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    asked = extract.add_argument_group("answers from an engine, in place of PAIRS")
    asked.add_argument("--questions", type=Path, help="one a line, or JSON Lines or CSV with `prompt`")
    asked.add_argument("--positive-system", help="the system prompt that brings the behavior about")
    asked.add_argument("--negative-system", help="the one that brings its opposite about")
    asked.add_argument("--max-tokens", type=int, default=96, help="of each answer")
    asked.add_argument("--temperature", type=float, default=0.7)
    asked.add_argument("--save-pairs", type=Path, help="keep the pairs in this JSON Lines file")
    add_engine_arguments(asked, required=False)
    extract.set_defaults(run=_extract)


def add_engine_arguments(parser: Any, *, required: bool) -> None:
    """How an engine is named, for each command that asks one."""
    parser.add_argument("--engine", required=required, metavar="URL", help="an OpenAI-compatible server")
    parser.add_argument("--engine-key", help=f"its API key (default: the variable {ENGINE_KEY_VARIABLE})")
    parser.add_argument("--engine-model", help="the model to ask there (default: its first)")
    parser.add_argument("--concurrency", type=int, default=64, help="questions in flight at once (default: 64)")


def engine_key(options: argparse.Namespace) -> str:
    return options.engine_key or os.environ.get(ENGINE_KEY_VARIABLE, "")


def parse_layers(text: str, num_blocks: int) -> list[int]:
    """Blocks named by `10,14`, `8-18` or `all`, ascending. Raises ValueError."""
    if text == "all":
        return list(range(num_blocks))
    layers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"--layers: expected blocks such as 10,14 or 8-18 or all, found {part!r}")
        span = range(int(first), int(last or first) + 1)
        if not span or span[-1] >= num_blocks:
            raise ValueError(f"--layers: expected blocks 0 to {num_blocks - 1}, found {part!r}")
        layers.update(span)
    return sorted(layers)


@contextmanager
def progress_bar() -> Iterator[Any]:
    """A rich progress bar on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        yield progress


def _extract(options: argparse.Namespace) -> int:
    # A bad file is refused before the seconds that torch and the model take to load.
    pairs = read_pairs(options.pairs) if options.pairs else None
    if (pairs is None) == (options.questions is None):
        raise ValueError("PAIRS, --questions: expected one of them, found " + ("neither" if pairs is None else "both"))
    work = options.work or options.out.with_name(f"{options.out.name}.work")
    started_s = time.monotonic()
    made_from: dict[str, str] = {}
    unusable: list[str] = []
    with stop_signals() as should_stop, progress_bar() as progress:
        try:
            if pairs is None:
                pairs, unusable = _generate(options, work, progress, should_stop)
                made_from = _provenance(options)
            extraction = _read(options, pairs, made_from, work, progress, should_stop)
        except Stopped as stopped:
            print(f"steerguard extract: {stopped}", file=sys.stderr)
            return STOPPED
    from steerguard.vectors import write_vector

    write_whole(options.out, write_vector(extraction.vector))
    if options.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return answer(
        {
            **_report(extraction),
            "pairs": len(pairs),
            "pairs_sha256": pairs_digest(pairs),
            "unusable_questions": len(unusable),
            "out": str(options.out),
            "seconds": round(time.monotonic() - started_s, 1),
        }
    )


def _generate(
    options: argparse.Namespace, work: Path, progress: Any, should_stop: ShouldStop
) -> tuple[list[Pair], list[str]]:
    for option in ("engine", "positive_system", "negative_system"):
        if not getattr(options, option):
            raise ValueError(f"--{option.replace('_', '-')}: expected with --questions, found nothing")
    questions = read_questions(options.questions)
    from steerguard.extraction.engine import Engine
    from steerguard.extraction.generate import generate_pairs

    task = progress.add_task("Ask the engine", total=2 * len(questions))
    generated = generate_pairs(
        Engine(options.engine, engine_key(options), model=options.engine_model, concurrency=options.concurrency),
        questions,
        positive_system=options.positive_system,
        negative_system=options.negative_system,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
        work=work,
        on_progress=lambda answers: progress.advance(task, answers),
        should_stop=should_stop,
    )
    if not generated.pairs:
        raise ValueError("--questions: expected answers that differ, found none that do")
    if options.save_pairs:
        write_whole(options.save_pairs, write_pairs(generated.pairs))
    return list(generated.pairs), list(generated.unusable)


def _provenance(options: argparse.Namespace) -> dict[str, str]:
    limit = 500
    return {
        "positive_system": options.positive_system[:limit],
        "negative_system": options.negative_system[:limit],
        "answers": f"generated, at most {options.max_tokens} tokens, temperature {options.temperature:g}",
    }


def _read(
    options: argparse.Namespace,
    pairs: list[Pair],
    made_from: dict[str, str],
    work: Path,
    progress: Any,
    should_stop: ShouldStop,
) -> "Extraction":
    loading = progress.add_task(f"Load {options.model}", total=None)
    import torch

    from steerguard.extraction.activations import load_language_model
    from steerguard.extraction.extract import extract_vector

    if options.threads:
        torch.set_num_threads(options.threads)
    language_model = load_language_model(options.model)
    progress.update(loading, total=1, completed=1)
    reading = progress.add_task("Read answers", total=2 * len(pairs))
    return extract_vector(
        language_model,
        pairs,
        layers=parse_layers(options.layers, language_model.num_blocks),
        method=options.method,
        tokens=options.tokens,
        held_out=options.held_out,
        seed=options.seed,
        name=options.name or (options.pairs or options.questions).stem,
        made_from=made_from,
        work=work / "activations",
        on_progress=lambda answers: progress.advance(reading, answers),
        should_stop=should_stop,
    )


def _report(extraction: "Extraction") -> dict[str, object]:
    vector = extraction.vector
    return {
        "name": vector.name,
        "digest": vector.digest,
        "layers": list(vector.layers),
        "hidden_size": vector.hidden_size,
        "base_model": vector.base_model,
        "method": vector.provenance["method"],
        "tokens": vector.provenance["tokens"],
        "norms": {block: round(norm, 3) for block, norm in vector.norms.items()},
        "residual_norms": {block: round(norm, 3) for block, norm in extraction.residual_norms.items()},
        "learned_pairs": extraction.learned_pairs,
        "held_out_pairs": extraction.held_out_pairs,
        "separability": {
            block: {
                "accuracy": round(found.accuracy, 4),
                # JSON has no infinity: what doesn't vary has no effect size.
                "cohens_d": round(found.cohens_d, 4) if abs(found.cohens_d) != float("inf") else None,
                "auc": round(found.auc, 4),
            }
            for block, found in extraction.separability.items()
        },
    }
