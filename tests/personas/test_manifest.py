"""Personas as YAML: what is exported applies again, applying twice changes nothing, nor does a wrong file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command

from personas import manifest, services
from personas.models import AuditEvent, Persona, SteeringVector, Tenant
from tests.conftest import MakeVector
from tests.personas.api.conftest import Api, outsider, owner, problem, viewer

__all__ = ["outsider", "owner", "viewer"]  # fixtures

FILE = """
sampling: {temperature: 0}
tenants:
  - slug: acme
    personas:
      - slug: sunny
        name: Sunny
        description: Every day is beautiful.
        try: How was your day?
        blend: {warm: 0.5}
        system_prompt: |
          You work
          for Acme.
      - slug: exact
        name: Exact
        blend: [{skill: warm, alpha: 2.5, positions: response, layers: [14]}]
        sampling: {max_tokens: 50}
        locked: [system]
        publish: false
"""

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "personas.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def warm(acme: Tenant, make_vector: MakeVector) -> SteeringVector:
    vector = make_vector(acme, "warm", layers=(10, 14))
    return services.update_vector(vector=vector, recommended_alpha=3.0, recommended_positions="response")


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_a_file_makes_and_publishes_personas_and_then_changes_nothing(
    acme: Tenant, warm: SteeringVector, write: Write
) -> None:
    path = write(FILE)
    assert run("apply", "-f", path) == "acme/sunny created\nacme/exact created\n"
    sunny, exact = (Persona.objects.get(slug=slug) for slug in ("sunny", "exact"))
    assert sunny.description == "Every day is beautiful. Try: “How was your day?”"
    assert sunny.published is not None and sunny.published.definition == sunny.draft
    assert sunny.draft["blend"] == [
        {"vector": warm.digest, "skill": "warm", "alpha": 1.5, "positions": "response", "layers": None}
    ]
    assert sunny.draft["system_prompt"] == "You work\nfor Acme.\n"
    assert exact.published is None
    assert exact.draft["sampling"] == {"temperature": 0.0, "max_tokens": 50}
    assert exact.draft["locked"] == ["system"]

    events = AuditEvent.objects.count()
    assert run("apply", "-f", path) == "acme/sunny unchanged\nacme/exact unchanged\n"
    assert AuditEvent.objects.count() == events


def test_a_dry_run_says_what_would_change_and_changes_nothing(acme: Tenant, warm: SteeringVector, write: Write) -> None:
    run("apply", "-f", write(FILE))
    events = AuditEvent.objects.count()
    said = run("apply", "-f", write(FILE.replace("{warm: 0.5}", "{warm: 1}")), "--dry-run")
    assert "-    alpha: 1.5\n+    alpha: 3.0" in said.replace("-  alpha", "-    alpha").replace(
        "+  alpha", "+    alpha"
    )
    assert said.endswith("acme/sunny updated (dry run)\nacme/exact unchanged (dry run)\n")
    assert AuditEvent.objects.count() == events
    assert Persona.objects.get(slug="sunny").draft["blend"][0]["alpha"] == 1.5
    assert run("apply", "-f", write(FILE.replace("{warm: 0.5}", "{warm: 1}"))).startswith("acme/sunny updated\n")
    assert Persona.objects.get(slug="sunny").revisions.count() == 2


def test_what_is_exported_applies_elsewhere(
    acme: Tenant, globex: Tenant, warm: SteeringVector, make_vector: MakeVector, write: Write
) -> None:
    run("apply", "-f", write(FILE))
    exported = run("export_personas", "acme")
    assert run("apply", "-f", write(exported)) == "acme/exact unchanged\nacme/sunny unchanged\n"
    theirs = make_vector(globex, "warm", seed=9, layers=(10, 14))
    run("apply", "-f", write(exported.replace("slug: acme", "slug: globex")))
    assert globex.personas.get(slug="exact").draft["blend"][0] == {
        "vector": theirs.digest,
        "skill": "warm",
        "alpha": 2.5,
        "positions": "response",
        "layers": [14],
    }
    make_vector(acme, "warm", seed=5, layers=(10, 14))  # the name means another one from now on
    entry = yaml.safe_load(run("export_personas", "acme", "exact"))["tenants"][0]["personas"][0]
    assert entry["blend"] == [{"vector": warm.digest, "alpha": 2.5, "positions": "response", "layers": [14]}]
    assert entry["publish"] is False


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{warm: 0.5}", "{cold: 0.5}", "acme/sunny: blend.cold: expected a skill"),
        ("skill: warm, alpha: 2.5", "skill: warm, alpha: .nan", "acme/exact: blend[0].alpha: expected a number"),
        ("skill: warm,", f"vector: '{'0' * 64}',", "acme/exact: blend[0].vector: expected the digest"),
        ("name: Exact", "nme: Exact", "acme/exact: nme: expected only the fields"),
        ("name: Exact", "name: 2026-12-01", "acme/exact: name: expected text"),
        ("max_tokens: 50", "max_tokens: many", "acme/exact: sampling.max_tokens: expected an integer"),
        ("slug: exact", "slug: sunny", "acme/sunny: slug: expected each persona once"),
        ("slug: exact", "slug: Not A Slug", "acme/Not A Slug: slug: expected at most 63"),
        ("publish: false", "publish: later", "acme/exact: publish: expected true or false"),
        ("slug: acme", "slug: nosuch", "tenants: expected a tenant that is there"),
        ("sampling: {temperature: 0}", "sampling: 5", "sampling: expected an object"),
        ("tenants:", "tenant:", "tenant: expected only the fields"),
        ("{warm: 0.5}", "{warm: much}", "acme/sunny: blend: expected skills"),
        ("{warm: 0.5}", "[{alpha: 1}]", "acme/sunny: blend[0]: expected either a skill or a vector"),
        ("name: Exact", "name: !!python/object/apply:os.getcwd []", "file: expected YAML"),
        ("name: Exact", "name: [", "file: expected YAML"),
        ("name: Exact", "name: &a x", None),
        ("name: Exact\n", "name: &a x\n        description: *a\n", "file: expected YAML without aliases"),
        ("name: Exact", "name: " + "[" * 60 + "]" * 60, "file: expected YAML of at most"),
        ("name: Exact", "name: 9" + "9" * 5000, "file: expected YAML"),
        ("name: Exact", 'name: "\\0"', "file: expected YAML|acme/exact: name: expected text"),
    ],
)
def test_a_wrong_file_is_told_where_and_changes_nothing(
    old: str, new: str, said: str | None, acme: Tenant, warm: SteeringVector, write: Write
) -> None:
    path = write(FILE.replace(old, new))
    if said is None:
        run("apply", "-f", path)
        return
    with pytest.raises(CommandError) as refused:
        run("apply", "-f", path)
    assert any(one in str(refused.value) for one in said.split("|")), str(refused.value)
    assert all(line.startswith(path) for line in str(refused.value).splitlines())
    assert not Persona.objects.exists()


def test_a_tenant_may_be_left_to_the_command(acme: Tenant, globex: Tenant, write: Write) -> None:
    path = write("personas: [{slug: a, name: A}]")
    assert run("apply", "-f", path, "--tenant", "globex") == "globex/a created\n"
    with pytest.raises(CommandError, match="one --tenant for all"):
        run("apply", "-f", path)
    with pytest.raises(CommandError, match=r"tenants\[0\]\.slug: expected globex"):
        run("apply", "-f", write("tenants: [{slug: acme, personas: []}]"), "--tenant", "globex")
    with pytest.raises(CommandError, match="No such file"):
        run("apply", "-f", path + "x")


def test_over_the_api(owner: Api, viewer: Api, outsider: Api, warm: SteeringVector, acme: Tenant) -> None:
    path, kind = "tenants/acme/apply", "application/yaml"
    planned = owner.post(f"{path}?dry_run=true", FILE.encode(), content_type=kind)
    assert [one["action"] for one in planned.json()["personas"]] == ["created", "created"]
    assert "+name: Sunny" in planned.json()["personas"][0]["diff"]
    assert not Persona.objects.exists()
    assert owner.post(path, FILE.encode(), content_type=kind).status_code == 200
    assert AuditEvent.objects.filter(action="persona.published").get().actor is not None
    exported = viewer.get("tenants/acme/personas/sunny/export")
    assert exported.headers["Content-Type"] == "application/yaml; charset=utf-8"
    again = owner.post(path, exported.content, content_type=kind)
    assert [one["action"] for one in again.json()["personas"]] == ["unchanged"]

    problem(owner.post(path, b"tenants: [{slug: globex, personas: []}]", content_type=kind), 400, "tenants[0].slug")
    wrong = owner.post(path, FILE.replace("{warm: 0.5}", "{cold: 1}").encode(), content_type=kind)
    problem(wrong, 400, "acme/sunny: blend.cold")
    problem(owner.post(path, b"a: *b", content_type=kind), 400, "file")
    problem(owner.post(path, b"", content_type=kind), 400, "definition")
    problem(owner.post(path, b"{}", content_type="application/json"), 415)
    problem(viewer.post(path, FILE.encode(), content_type=kind), 403)


def test_reading_is_bounded() -> None:
    with pytest.raises(manifest.InvalidManifest, match="at most"):
        manifest.load(b" " * (manifest.MAX_BYTES + 1), "f")
