"""`python -m steerguard extract`: a steering vector from contrastive pairs."""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steerguard.command_line import answer, write_whole

if TYPE_CHECKING:
    from steerguard.command_line import Commands


def register(commands: "Commands") -> None:
    extract = commands.add_parser("extract", help="make a steering vector from contrastive pairs")
    extract.add_argument("pairs", type=Path, help="JSON Lines: prompt, positive, negative")
    extract.add_argument("--model", required=True, help="folder or hub id of a Hugging Face causal model")
    extract.add_argument("--layers", required=True, help="0-based decoder blocks: 10,14 or 8-18 or all")
    extract.add_argument("--name", help="the vector's name (default: the pairs file's)")
    extract.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    extract.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    extract.set_defaults(run=_extract)


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


def _extract(options: argparse.Namespace) -> int:
    from steerguard.extraction.pairs import read_pairs

    # A bad file is refused before the seconds that torch and the model take to load.
    pairs = read_pairs(options.pairs)

    import torch
    from rich.console import Console
    from rich.progress import Progress

    from steerguard.extraction.activations import load_language_model
    from steerguard.extraction.mean_difference import extract_vector
    from steerguard.vectors import write_vector

    if options.threads:
        torch.set_num_threads(options.threads)
    started_s = time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        loading = progress.add_task(f"Load {options.model}", total=None)
        language_model = load_language_model(options.model)
        progress.update(loading, total=1, completed=1)
        reading = progress.add_task("Read answers", total=2 * len(pairs))
        extraction = extract_vector(
            language_model,
            pairs,
            layers=parse_layers(options.layers, language_model.num_blocks),
            name=options.name or options.pairs.stem,
            on_progress=lambda answers: progress.advance(reading, answers),
        )
    vector = extraction.vector
    write_whole(options.out, write_vector(vector))
    return answer(
        {
            "name": vector.name,
            "digest": vector.digest,
            "layers": list(vector.layers),
            "hidden_size": vector.hidden_size,
            "base_model": vector.base_model,
            "norms": {block: round(norm, 3) for block, norm in vector.norms.items()},
            "residual_norms": {block: round(norm, 3) for block, norm in extraction.residual_norms.items()},
            "pairs": len(pairs),
            "out": str(options.out),
            "seconds": round(time.monotonic() - started_s, 1),
        }
    )
