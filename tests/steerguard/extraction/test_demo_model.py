"""Extraction on the real demo model: slow, and what the demo stands on."""

from statistics import fmean

import pytest

from personas.demo.recipes import load_recipes
from steerguard.extraction.activations import load_language_model
from steerguard.extraction.extract import extract_vector
from steerguard.extraction.pairs import read_pairs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def language_model(demo_model):
    return load_language_model(demo_model)


def test_the_demo_vectors_are_deterministic_and_as_strong_as_their_recipes_say(language_model):
    recipes = load_recipes()
    for name in ("cheerful", "pirate"):
        recipe = recipes.by_name[name]
        pairs = read_pairs(recipe.pairs_path)
        layers = recipes.layers_for(recipe, language_model.num_blocks)
        first = extract_vector(language_model, pairs, layers=layers, held_out=0)
        again = extract_vector(language_model, pairs, layers=layers, held_out=0)
        assert again.vector.digest == first.vector.digest
        assert layers == list(recipe.layers)
        dose = fmean(first.dose(recipe.alpha, layer) for layer in layers)
        assert dose == pytest.approx(recipe.dose, abs=0.002)
