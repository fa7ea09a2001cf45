"""`python -m steerguard calibrate`: which blocks and strength a vector should be used with, and where harm begins."""

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steerguard.calibration.prompts import PROMPTS
from steerguard.command_line import UNANSWERED, answer, write_whole
from steerguard.extraction.cli import STOPPED, add_engine_arguments, engine_key, progress_bar
from steerguard.extraction.pairs import Pair, read_pairs, read_questions
from steerguard.extraction.progress import Stopped, stop_signals

if TYPE_CHECKING:
    from steerguard.calibration.measures import Measure
    from steerguard.calibration.result import Calibration
    from steerguard.command_line import Commands

PROMPT_COUNT = 12


def register(commands: "Commands") -> None:
    calibrate = commands.add_parser(
        "calibrate",
        help="measure how strong a vector may be, on an engine with the plugin",
        description="Sweeps blocks and doses of a vector on a running engine with the SteerGuard plugin, measures "
        "behavior and damage, and writes what it finds as JSON. Run the same command again after an interruption: it "
        "goes on where it was.",
    )
    calibrate.add_argument("vector", type=Path, help="a canonical safetensors file")
    add_engine_arguments(calibrate, required=True)
    calibrate.add_argument(
        "--measure",
        action="append",
        default=[],
        metavar="NAME",
        help="sentiment, language:fr, words:lower, json, lix, …; the first decides (default: the probe of --pairs)",
    )
    calibrate.add_argument(
        "--pairs", type=Path, help="the pairs that show the behavior: trains a probe (needs --model)"
    )
    calibrate.add_argument("--model", help="folder or hub id of the base model, for the probe to read answers with")
    calibrate.add_argument(
        "--layers",
        action="append",
        metavar="BLOCKS",
        help="blocks to steer together, 10 or 10,14; give it again for more",
    )
    calibrate.add_argument("--doses", help="‖α·v‖/‖h‖ to try: 0.1,0.2,0.4")
    calibrate.add_argument("--instruction", default="", help="a system prompt that asks for the behavior, to compare")
    calibrate.add_argument("--prompts", type=Path, help="what to answer (default: 12 everyday questions)")
    calibrate.add_argument("--prompt-count", type=int, default=PROMPT_COUNT, help="how many of them (default: 12)")
    calibrate.add_argument("--positions", choices=("all", "prompt", "response"), default="all")
    calibrate.add_argument("--max-tokens", type=int, default=48, help="of each answer")
    calibrate.add_argument("--temperature", type=float, default=0.0)
    calibrate.add_argument("--seed", type=int, default=0)
    calibrate.add_argument("--out", type=Path, help="the JSON to write (default: VECTOR with .calibration.json)")
    calibrate.add_argument("--store", action="store_true", help="also put a summary into VECTOR's provenance")
    calibrate.add_argument("--work", type=Path, help="where unfinished work is kept (default: OUT.work, then removed)")
    calibrate.add_argument("--threads", type=int, help="CPU threads of the probe (default: torch's choice)")
    calibrate.set_defaults(run=_calibrate)


def parse_layer_set(text: str) -> tuple[int, ...]:
    """Blocks named by `10` or `10,14`. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"--layers: expected blocks such as 10 or 10,14, found {text!r}")
    return tuple(int(part) for part in parts)


def parse_doses(text: str) -> tuple[float, ...]:
    """Numbers divided by commas. Raises ValueError."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--doses: expected numbers such as 0.1,0.2, found {text!r}") from None


def _calibrate(options: argparse.Namespace) -> int:
    from steerguard.vectors import read_vector, write_vector

    vector = read_vector(options.vector)
    pairs = read_pairs(options.pairs) if options.pairs else []
    prompts = _prompts(options, pairs)
    if not options.measure and not pairs:
        print("steerguard calibrate: --measure or --pairs has to say what the behavior is", file=sys.stderr)
        return UNANSWERED
    if pairs and not options.model:
        print("steerguard calibrate: --model has to say what --pairs are read with", file=sys.stderr)
        return UNANSWERED
    from steerguard.calibration.ask import Sampling
    from steerguard.calibration.calibrate import calibrate
    from steerguard.calibration.measures import find_measure
    from steerguard.calibration.sweep import DOSES
    from steerguard.extraction.engine import Engine

    out = options.out or options.vector.with_suffix(".calibration.json")
    work = options.work or out.with_name(f"{out.name}.work")
    started_s = time.monotonic()
    measures = [find_measure(name) for name in options.measure]
    with stop_signals() as should_stop, progress_bar() as progress:
        if pairs:
            measures.append(_probe(options, pairs))
        task = progress.add_task("Ask the engine", total=None)
        try:
            calibration = calibrate(
                vector,
                Engine(
                    options.engine, engine_key(options), model=options.engine_model, concurrency=options.concurrency
                ),
                prompts=prompts,
                measures=measures,
                layer_sets=[parse_layer_set(text) for text in options.layers] if options.layers else None,
                doses=parse_doses(options.doses) if options.doses else DOSES,
                instruction=options.instruction,
                sampling=Sampling(options.max_tokens, options.temperature, options.seed, options.positions),
                seed=options.seed,
                work=work,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
                should_stop=should_stop,
            )
        except Stopped as stopped:
            print(f"steerguard calibrate: {stopped}", file=sys.stderr)
            return STOPPED
    write_whole(out, calibration.to_json())
    if options.store:
        write_whole(options.vector, write_vector(calibration.stored_with(vector)))
    if options.work is None:
        shutil.rmtree(work, ignore_errors=True)
    return answer({**_summary(calibration), "out": str(out), "seconds": round(time.monotonic() - started_s, 1)})


def _prompts(options: argparse.Namespace, pairs: list[Pair]) -> list[str]:
    """What to answer, without what the pairs already ask."""
    asked = {pair.prompt for pair in pairs}
    prompts = read_questions(options.prompts) if options.prompts else list(PROMPTS)
    return [prompt for prompt in prompts if prompt not in asked][: options.prompt_count]


def _probe(options: argparse.Namespace, pairs: list[Pair]) -> "Measure":
    import torch

    from steerguard.calibration.probe import train_probe
    from steerguard.extraction.activations import load_language_model

    if options.threads:
        torch.set_num_threads(options.threads)
    return train_probe(load_language_model(options.model), pairs, seed=options.seed).as_measure()


def _summary(calibration: "Calibration") -> dict[str, object]:
    found = calibration.recommendation
    return {
        "vector": calibration.vector,
        "measure": calibration.measures[0].name,
        "layers": list(found.layers),
        "alpha": found.alpha,
        "dose": found.dose,
        "reason": found.reason,
        "points": len(calibration.points),
        "prompts": len(calibration.prompts),
        "windows": [
            {
                "layers": list(window.layers),
                "effective_from": window.effective_from.alpha if window.effective_from else None,
                "green_to": window.green_to.alpha,
                "red_from": window.red_from.alpha,
            }
            for window in calibration.windows
        ],
    }
