"""`manage.py seed_demo` on a random model small enough for a test: what it makes, and that it can be repeated."""

import io
import json
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import transaction
from django.test import override_settings

from personas import services
from personas.api_keys import find_api_key
from personas.demo.catalog import load_catalog
from personas.demo.recipes import load_recipes
from personas.models import AuditEvent, Membership, Persona, PersonaRevision, SteeringVector, Tenant
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.django_db

Seed = Callable[..., str]
SKILLS = load_recipes().by_name


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two base models, and a data folder for `seeded`."""
    folder = tmp_path_factory.mktemp("workshop")
    write_tiny_model(folder / "tiny-llama", num_blocks=3, hidden_size=16)
    write_tiny_model(folder / "other-llama", num_blocks=2, hidden_size=16, seed=1)
    (folder / "data").mkdir()
    return folder


@pytest.fixture(scope="module")
def first_run(workshop: Path, django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """What a first run prints. Every test of this file begins after it, in a database of its own making."""
    with django_db_blocker.unblock(), transaction.atomic():
        with override_settings(DATA_DIR=workshop / "data"):
            printed = run_seed(workshop / "tiny-llama")
        yield printed
        transaction.set_rollback(True)


@pytest.fixture
def data_dir(first_run: str, workshop: Path, tmp_path: Path, settings: Any) -> Path:
    """The data folder as the first run left it."""
    shutil.copytree(workshop / "data", tmp_path / "data")
    settings.DATA_DIR = tmp_path / "data"
    return tmp_path / "data"


@pytest.fixture
def seed(data_dir: Path, workshop: Path) -> Seed:
    """Runs the command again."""
    return lambda *arguments, model="tiny-llama": run_seed(workshop / model, *arguments)


def run_seed(model: Path, *arguments: str) -> str:
    out = io.StringIO()
    call_command("seed_demo", *arguments, "--model", str(model), stdout=out)
    return out.getvalue()


def credentials_in(data_dir: Path) -> dict[str, Any]:
    return json.loads((data_dir / "demo-credentials.json").read_text())


def test_fifty_published_personas_in_two_tenants(data_dir):
    assert Tenant.objects.count() == 2
    assert Persona.objects.count() == 50
    for persona in Persona.objects.select_related("published"):
        assert persona.published is not None
        assert not persona.has_unpublished_changes
        assert persona.published.definition["blend"]


def test_the_vectors_are_shared_and_on_disk(data_dir):
    rows = SteeringVector.objects.all()
    assert {row.name for row in rows} == set(SKILLS)
    for row in rows:
        assert row.tenant is None
        assert (row.base_model, row.hidden_size) == ("tiny-llama", 16)
        assert (data_dir / "vectors" / f"{row.digest}.safetensors").exists()
        low, high = row.source["window"]
        assert low <= row.recommended_alpha <= high


def test_another_models_strengths_give_the_tuned_dose(data_dir):
    for row in SteeringVector.objects.all():
        doses = [
            row.recommended_alpha * row.norms[str(layer)] / float(row.source[f"residual_norm.{layer}"])
            for layer in row.layers
        ]
        assert sum(doses) / len(doses) == pytest.approx(SKILLS[row.name].dose, rel=0.02)


def test_the_credentials_work_and_only_their_owner_may_read_them(data_dir, client):
    path = data_dir / "demo-credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = credentials_in(data_dir)
    assert client.login(username=said["user"], password=said["password"])
    assert client.login(username=said["admin_user"], password=said["admin_password"])
    assert User.objects.get(username=said["admin_user"]).is_superuser
    assert not User.objects.get(username=said["user"]).is_staff
    tenant, slug = said["persona"].split("/")
    assert Persona.objects.filter(tenant__slug=tenant, slug=slug).exists()
    key = find_api_key(said["api_key"])
    assert key is not None and key.tenant.slug == tenant
    keys = {slug: find_api_key(text) for slug, text in said["api_keys"].items()}
    assert {slug: key.tenant.slug for slug, key in keys.items() if key} == {
        tenant.slug: tenant.slug for tenant in load_catalog().tenants
    }


def test_the_demo_user_belongs_to_both_tenants(data_dir):
    roles = dict(Membership.objects.filter(user__username="demo").values_list("tenant__slug", "role"))
    assert roles == {tenant.slug: tenant.demo_role for tenant in load_catalog().tenants}


def test_people_come_before_any_model_is_read(db, tmp_path, settings, client):
    settings.DATA_DIR = tmp_path
    for persona in Persona.objects.all():
        services.delete_persona(persona=persona)
    assert run_seed(tmp_path / "no-model", "--people-only") == ""
    said = credentials_in(tmp_path)
    assert client.login(username=said["user"], password=said["password"])
    assert find_api_key(said["api_key"]) is not None
    assert b"demo\xe2\x80\x99s personas are being made" in client.get("/playground/").content


def test_secrets_are_not_printed(first_run, data_dir):
    said = credentials_in(data_dir)
    for secret in (said["password"], said["admin_password"], *said["api_keys"].values()):
        assert secret not in first_run


def test_a_second_run_changes_nothing_and_runs_no_model(seed, data_dir):
    events, said = AuditEvent.objects.count(), credentials_in(data_dir)
    printed = seed()
    assert AuditEvent.objects.count() == events
    assert credentials_in(data_dir) == said
    assert "Making vectors" not in printed
    assert "0 personas made or updated" in printed


def test_what_a_person_changed_is_left_alone(seed):
    author = User.objects.get(username="demo")
    published = Persona.objects.order_by("pk")[0]
    services.save_draft(persona=published, definition={"system_prompt": "Mine."}, actor=author)
    services.publish_persona(persona=published, actor=author)
    drafted = Persona.objects.order_by("pk")[1]
    services.save_draft(persona=drafted, definition={"system_prompt": "Not yet."}, actor=author)
    seed()
    published.refresh_from_db()
    drafted.refresh_from_db()
    assert published.published and drafted.published
    assert published.published.definition["system_prompt"] == "Mine."
    assert drafted.draft["system_prompt"] == "Not yet."
    assert drafted.published.definition["system_prompt"] == ""


def test_what_is_missing_comes_back(seed, data_dir):
    services.delete_persona(persona=Persona.objects.order_by("pk")[3])
    vector = SteeringVector.objects.order_by("pk")[0]
    path = data_dir / "vectors" / f"{vector.digest}.safetensors"
    path.unlink()
    printed = seed()
    assert "1 personas made or updated" in printed
    assert Persona.objects.count() == 50
    assert path.exists()


def test_a_revoked_key_is_replaced(seed, data_dir):
    lost = credentials_in(data_dir)["api_key"]
    key = find_api_key(lost)
    assert key is not None
    services.revoke_api_key(key=key)
    seed()
    said = credentials_in(data_dir)
    assert said["api_key"] != lost
    assert find_api_key(said["api_key"]) is not None


def test_lost_credentials_are_made_anew_and_the_old_ones_closed(seed, data_dir, client):
    old = credentials_in(data_dir)
    (data_dir / "demo-credentials.json").unlink()
    seed()
    new = credentials_in(data_dir)
    assert find_api_key(old["api_key"]) is None
    assert find_api_key(new["api_key"]) is not None
    assert client.login(username="demo", password=new["password"])
    assert not client.login(username="demo", password=old["password"])
    # The operator may be somebody real by now.
    assert new["admin_password"] is None
    assert client.login(username="admin", password=old["admin_password"])


def test_another_base_model_moves_the_personas_to_its_vectors(seed):
    seed(model="other-llama")
    assert SteeringVector.objects.filter(base_model="other-llama").count() == len(SKILLS)
    moved = set(SteeringVector.objects.filter(base_model="other-llama").values_list("digest", flat=True))
    for persona in Persona.objects.select_related("published"):
        assert persona.published is not None and persona.published.number == 2
        assert {component["vector"] for component in persona.published.definition["blend"]} <= moved
    assert PersonaRevision.objects.count() == 100
