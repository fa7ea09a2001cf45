"""How each demo vector is made and how strong it should be: `recipes.yaml`, for any base model.

Blocks and strengths were found by reading answers of one model. For another one the same depth is taken, and the
strength that gives the same dose, ‖α·v‖ / ‖h‖, there: a starting point, where the demo model's are tuned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """One behavior: its pairs, and what was found to work on the model it was tuned on."""

    name: str
    description: str
    opposite: str
    """What a negative strength gives."""
    layers: tuple[int, ...]
    """0-based blocks of the tuned model."""
    alpha: float
    dose: float
    """`alpha` on the tuned model as ‖α·v‖ / ‖h‖, mean over `layers`."""
    positions: str
    window: tuple[float, float]
    """Strengths between which the tuned model's answers show the behavior and read well."""
    note: str

    @property
    def pairs_path(self) -> Path:
        return FOLDER / "pairs" / f"{self.name}.jsonl"


@dataclass(frozen=True)
class Recipes:
    """All recipes, and the model they were tuned on."""

    tuned_model: str
    tuned_blocks: int
    by_name: Mapping[str, Recipe]

    def layers_for(self, recipe: Recipe, num_blocks: int) -> list[int]:
        """The blocks at the recipe's depth in a model of `num_blocks`."""
        return sorted({_same_depth(layer, self.tuned_blocks, num_blocks) for layer in recipe.layers})

    def alpha_for(
        self, recipe: Recipe, *, base_model: str, norms: Mapping[int, float], residual_norms: Mapping[int, float]
    ) -> float:
        """The recipe's strength on `base_model`, given ‖v‖ and ‖h‖ by block."""
        if base_model == self.tuned_model:
            return recipe.alpha
        unit_dose = fmean(norms[layer] / residual_norms[layer] for layer in norms)
        return round(recipe.dose / unit_dose, 3)


def load_recipes() -> Recipes:
    """The recipes of this folder."""
    data: dict[str, Any] = yaml.safe_load((FOLDER / "recipes.yaml").read_text(encoding="utf-8"))
    tuned_on = data["tuned_on"]
    return Recipes(
        tuned_model=tuned_on["model"],
        tuned_blocks=tuned_on["blocks"],
        by_name={recipe.name: recipe for recipe in _parse(data["vectors"].items())},
    )


def _parse(items: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterable[Recipe]:
    for name, fields in items:
        low, high = fields["window"]
        yield Recipe(
            name=name,
            description=fields["description"],
            opposite=fields["opposite"],
            layers=tuple(fields["layers"]),
            alpha=float(fields["alpha"]),
            dose=float(fields["dose"]),
            positions=fields["positions"],
            window=(float(low), float(high)),
            note=fields["note"],
        )


def _same_depth(layer: int, blocks: int, other_blocks: int) -> int:
    return round(layer * (other_blocks - 1) / max(blocks - 1, 1))
