"""The demo's files are complete and consistent, whatever model they are used with."""

import json
import re

import pytest

from personas.demo.catalog import load_catalog
from personas.demo.recipes import FOLDER, load_recipes
from personas.models import SLUG_PATTERN
from steerguard.extraction.pairs import read_pairs

RECIPES = load_recipes()
CATALOG = load_catalog()


def test_every_recipe_has_pairs_and_every_pairs_file_a_recipe():
    files = {path.stem for path in (FOLDER / "pairs").glob("*.jsonl")}
    assert files == set(RECIPES.by_name)
    assert len(files) >= 6


@pytest.mark.parametrize("name", RECIPES.by_name)
def test_pairs_are_enough_and_different(name):
    pairs = read_pairs(RECIPES.by_name[name].pairs_path)
    assert len(pairs) >= 16
    for texts in zip(*((pair.prompt, pair.positive, pair.negative) for pair in pairs), strict=True):
        assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("recipe", RECIPES.by_name.values(), ids=lambda recipe: recipe.name)
def test_a_recipe_recommends_what_lies_in_its_window(recipe):
    low, high = recipe.window
    assert 0 < low <= recipe.alpha <= high
    assert 0 < recipe.dose < 1
    assert recipe.positions in ("all", "prompt", "response")
    assert all(0 <= layer < RECIPES.tuned_blocks for layer in recipe.layers)


def test_two_companies_have_fifty_different_personas():
    assert len(CATALOG.tenants) == 2
    personas = [(tenant.slug, persona) for tenant in CATALOG.tenants for persona in tenant.personas]
    assert len(personas) == 50
    assert len({(tenant, persona.slug) for tenant, persona in personas}) == 50
    assert len({json.dumps(persona.blend, sort_keys=True) for _, persona in personas}) == 50
    assert len({persona.name for _, persona in personas}) == 50


def test_personas_are_made_of_known_skills_and_say_what_to_try():
    for tenant in CATALOG.tenants:
        assert re.match(SLUG_PATTERN, tenant.slug)
        for persona in tenant.personas:
            assert re.match(SLUG_PATTERN, persona.slug)
            assert persona.blend
            assert set(persona.blend) <= set(RECIPES.by_name)
            assert re.search(r"Try: “.+”$", persona.description)


def test_the_persona_a_newcomer_meets_exists():
    names = {f"{tenant.slug}/{persona.slug}" for tenant in CATALOG.tenants for persona in tenant.personas}
    assert CATALOG.first_persona in names


def test_blocks_keep_their_depth_in_another_model():
    recipe = RECIPES.by_name["cheerful"]
    assert RECIPES.layers_for(recipe, RECIPES.tuned_blocks) == list(recipe.layers)
    for blocks in (1, 2, 12, 28, 80):
        layers = RECIPES.layers_for(recipe, blocks)
        assert all(0 <= layer < blocks for layer in layers)
    assert RECIPES.layers_for(recipe, 59) == [2 * layer for layer in recipe.layers]


def test_the_strength_is_exact_on_the_tuned_model_and_keeps_the_dose_on_another():
    recipe = RECIPES.by_name["formal"]
    norms, residual_norms = {5: 2.0}, {5: 50.0}
    tuned = RECIPES.alpha_for(recipe, base_model=RECIPES.tuned_model, norms=norms, residual_norms=residual_norms)
    assert tuned == recipe.alpha
    other = RECIPES.alpha_for(recipe, base_model="another", norms=norms, residual_norms=residual_norms)
    assert other * 2.0 / 50.0 == pytest.approx(recipe.dose, rel=1e-3)
