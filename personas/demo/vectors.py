"""Makes the demo's vectors by running MODEL over the pairs, and keeps them so that it happens once.

A kept vector is named by everything it depends on: the pairs' text, the model's files, the blocks and the version
of the method. Change any of them and it is made anew; change none and neither torch nor the model is loaded.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from personas.demo.recipes import Recipe, Recipes
from steerguard.extraction.pairs import Pair, pairs_digest, read_pairs
from steerguard.vectors import SteeringVector, VectorError, read_vector, write_vector

METHOD_VERSION = "mean-difference-1"


class ModelUnusable(Exception):
    """MODEL names nothing that vectors can be made on."""


@dataclass(frozen=True)
class MadeVector:
    """A vector, and the strength that its recipe comes to on this model."""

    recipe: Recipe
    vector: SteeringVector
    alpha: float


class Progress(Protocol):
    """Who wants to know how far the making is. Not told anything when every vector was kept from before."""

    def started(self, answers: int) -> None:
        """The model is about to be loaded, to read that many answers."""

    def reading(self, name: str, number: int, of: int) -> None:
        """Vector `number` of `of` is next."""

    def advanced(self, answers: int) -> None:
        """So many more answers were read."""


def make_vectors(
    recipes: Recipes, *, model: str, base_model: str, cache: Path, progress: Progress
) -> dict[str, MadeVector]:
    """Every recipe's vector for the model at `model`, which vectors call `base_model`, by name.

    Raises ModelUnusable, and PairsError for a broken pairs file.
    """
    num_blocks = _num_blocks(model)
    fingerprint = _fingerprint(model)
    vectors: dict[str, SteeringVector] = {}
    missing: dict[str, tuple[list[Pair], list[int], Path]] = {}
    for name, recipe in recipes.by_name.items():
        pairs = read_pairs(recipe.pairs_path)
        layers = recipes.layers_for(recipe, num_blocks)
        path = _cache_path(cache, pairs, layers, fingerprint, base_model)
        kept = _read_kept(path)
        if kept is None:
            missing[name] = (pairs, layers, path)
        else:
            vectors[name] = kept
    if missing:
        _extract_missing(missing, vectors, model=model, base_model=base_model, progress=progress)
    return {name: _made(recipes, recipe, vectors[name]) for name, recipe in recipes.by_name.items()}


def _extract_missing(
    missing: Mapping[str, tuple[list[Pair], list[int], Path]],
    vectors: dict[str, SteeringVector],
    *,
    model: str,
    base_model: str,
    progress: Progress,
) -> None:
    """One model load for all; each vector is kept as soon as it is there."""
    from steerguard.extraction.activations import load_language_model
    from steerguard.extraction.extract import extract_vector

    progress.started(sum(2 * len(pairs) for pairs, _, _ in missing.values()))
    try:
        language_model = load_language_model(model, name=base_model)
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"MODEL={model} can't be loaded: {str(error).splitlines()[0]}") from error
    for number, (name, (pairs, layers, path)) in enumerate(missing.items(), start=1):
        progress.reading(name, number, len(missing))
        extraction = extract_vector(
            language_model, pairs, layers=layers, name=name, held_out=0, on_progress=progress.advanced
        )
        vectors[name] = extraction.vector
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_bytes(write_vector(extraction.vector))
        draft.replace(path)


def _made(recipes: Recipes, recipe: Recipe, vector: SteeringVector) -> MadeVector:
    residual_norms = {layer: float(vector.provenance[f"residual_norm.{layer}"]) for layer in vector.layers}
    alpha = recipes.alpha_for(recipe, base_model=vector.base_model, norms=vector.norms, residual_norms=residual_norms)
    return MadeVector(recipe=recipe, vector=vector, alpha=alpha)


def _read_kept(path: Path) -> SteeringVector | None:
    try:
        return read_vector(path)
    except (OSError, VectorError):
        return None


def _cache_path(cache: Path, pairs: list[Pair], layers: list[int], fingerprint: str, base_model: str) -> Path:
    key = json.dumps([METHOD_VERSION, pairs_digest(pairs), layers, fingerprint, base_model])
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"


def _fingerprint(model: str) -> str:
    """Changes when the model's files do. A hub id stands for itself: its files aren't ours to look at."""
    folder = Path(model)
    if not folder.is_dir():
        return model
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stats = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(stats).encode()).hexdigest()


def _num_blocks(model: str) -> int:
    """Depth of the model, from its configuration alone."""
    folder = Path(model)
    try:
        if folder.is_absolute() or folder.is_dir():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return int(config.get("text_config", config)["num_hidden_layers"])
        from transformers import AutoConfig

        return int(AutoConfig.from_pretrained(model).get_text_config().num_hidden_layers)
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"MODEL={model} has no readable configuration: {error}") from error
