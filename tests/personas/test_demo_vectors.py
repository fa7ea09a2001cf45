"""The vectors half of `manage.py seed_demo`: made once for each model, kept, and made again when they have to be."""

import io
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from personas.demo.recipes import load_recipes
from personas.models import SteeringVector, Tenant
from steerguard.vectors import read_vector
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama", num_blocks=2, hidden_size=16)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _data_dir(data_dir: Path, settings: Any) -> None:
    settings.DATA_DIR = data_dir


def make_vectors(model: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("seed_demo", "--vectors-only", "--model", str(model), *arguments, stdout=out)
    return out.getvalue()


def test_vectors_only_makes_nothing_else(model, data_dir):
    make_vectors(model)
    assert set(SteeringVector.objects.values_list("name", flat=True)) == set(load_recipes().by_name)
    assert not Tenant.objects.exists()
    assert not User.objects.exists()
    assert not (data_dir / "demo-credentials.json").exists()


def test_vectors_that_were_kept_are_not_made_again(model):
    make_vectors(model)
    assert "Making vectors" not in make_vectors(model)


def test_a_damaged_kept_vector_is_made_again(model, data_dir):
    make_vectors(model)
    path = min((data_dir / "vectors-cache").glob("*.safetensors"))
    name, digest = read_vector(path).name, read_vector(path).digest
    path.write_bytes(path.read_bytes()[:100])
    printed = make_vectors(model)
    assert f"1/1 {name}" in printed
    assert read_vector(path).digest == digest


def test_a_model_that_changed_in_place_gets_new_vectors(model):
    make_vectors(model)
    write_tiny_model(model, num_blocks=2, hidden_size=16, seed=7)
    assert "10/10" in make_vectors(model)


def test_the_served_name_is_what_vectors_are_for(model):
    make_vectors(model, "--base-model", "served/name")
    assert set(SteeringVector.objects.values_list("base_model", flat=True)) == {"served/name"}


def test_a_missing_model_is_one_clear_line(tmp_path):
    with pytest.raises(CommandError, match="has no readable configuration"):
        make_vectors(tmp_path / "none")
