"""The operator's pages change things through services, and show no secret."""

import json

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from inference.models import Engine
from inference.services import register_engine
from personas import services
from personas.api_keys import find_api_key
from personas.models import AuditEvent, Membership, Persona, SteeringVector, Tenant
from tests.conftest import MakePersona, MakeVector


@pytest.fixture
def operator(client: Client, db: None) -> Client:
    """A browser in which a superuser is signed in."""
    client.force_login(User.objects.create_superuser("operator"))
    return client


def messages_after(client: Client, path: str, data: dict[str, object]) -> str:
    response = client.post(path, data, follow=True)
    assert response.status_code == 200
    return " ".join(str(message) for message in response.context["messages"])


def test_members_of_tenants_are_no_operators(alice_client: Client, acme: Tenant) -> None:
    assert alice_client.get("/admin/personas/tenant/").status_code == 302


def test_staff_who_may_only_look_can_change_nothing(
    client: Client, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    client.force_login(viewer)
    key, _text = services.issue_api_key(tenant=acme, name="backend")
    persona, vector = make_persona(acme, "support"), make_vector(acme, "warm")
    engine = register_engine(name="local", url="http://127.0.0.1:1")
    for path, action, row in (
        ("personas/apikey", "revoke", key),
        ("personas/persona", "publish", persona),
        ("inference/engine", "disable", engine),
    ):
        client.post(f"/admin/{path}/", {"action": action, "_selected_action": [row.pk]})
        row.refresh_from_db()
    assert client.post(f"/admin/personas/steeringvector/{vector.pk}/delete/", {"post": "yes"}).status_code == 403
    assert key.is_valid()
    assert persona.revisions.count() == 1
    assert engine.enabled


@pytest.mark.parametrize(
    "path",
    ["tenant", "membership", "apikey", "steeringvector", "persona", "personarevision", "auditevent"],
)
def test_every_list_and_row_can_be_seen(
    operator: Client, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona, path: str
) -> None:
    make_persona(acme, "support", make_vector(acme, "warm"))
    services.issue_api_key(tenant=acme, name="backend")
    listed = operator.get(f"/admin/personas/{path}/?q=acme")
    assert listed.status_code == 200
    (row,) = listed.context["cl"].queryset[:1]
    assert operator.get(f"/admin/personas/{path}/{row.pk}/change/").status_code == 200


def test_a_tenant_and_its_owner_are_made(operator: Client, alice: User) -> None:
    operator.post("/admin/personas/tenant/add/", {"slug": "acme", "name": "Acme"})
    tenant = Tenant.objects.get(slug="acme")
    operator.post("/admin/personas/membership/add/", {"user": alice.pk, "tenant": tenant.pk, "role": "owner"})
    assert Membership.objects.get(user=alice).tenant == tenant
    made = AuditEvent.objects.filter(tenant=tenant)
    assert [event.action for event in made] == ["member.added", "tenant.created"]
    assert {event.actor.username for event in made if event.actor} == {"operator"}


def test_a_refusal_is_shown_and_changes_nothing(operator: Client, acme: Tenant, alice: User) -> None:
    owner = Membership.objects.get(user=alice)
    said = messages_after(operator, f"/admin/personas/membership/{owner.pk}/delete/", {"post": "yes"})
    assert "expected another owner of acme first" in said
    assert Membership.objects.filter(pk=owner.pk).exists()


def test_a_bad_draft_is_explained_at_its_field(operator: Client, acme: Tenant) -> None:
    draft = json.dumps({"blend": [{"vector": "x", "alpha": None}]})
    response = operator.post(
        "/admin/personas/persona/add/", {"tenant": acme.pk, "slug": "support", "name": "S", "draft": draft}
    )
    errors = response.context["adminform"].form.errors["draft"]
    assert any("blend[0].alpha" in error for error in errors)
    assert not Persona.objects.exists()


def test_another_tenants_vector_is_refused_in_a_draft(
    operator: Client, acme: Tenant, globex: Tenant, make_vector: MakeVector
) -> None:
    draft = json.dumps({"blend": [{"vector": make_vector(acme, "secret").digest}]})
    data = {"tenant": globex.pk, "slug": "spy", "name": "Spy", "draft": draft}
    said = messages_after(operator, "/admin/personas/persona/add/", data)
    assert "blend[0].vector" in said
    assert not Persona.objects.exists()


def test_a_persona_is_edited_and_published(operator: Client, acme: Tenant, make_persona: MakePersona) -> None:
    persona = make_persona(acme, "support")
    data = {"name": "Support", "description": "", "draft": json.dumps({"system_prompt": "Be kind."})}
    operator.post(f"/admin/personas/persona/{persona.pk}/change/", data)
    operator.post("/admin/personas/persona/", {"action": "publish", "_selected_action": [persona.pk]})
    persona.refresh_from_db()
    assert persona.published is not None
    assert persona.published.number == 2
    assert persona.published.definition["system_prompt"] == "Be kind."


def test_a_vector_in_use_is_not_deleted(
    operator: Client, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    used, unused = make_vector(acme, "used", seed=1), make_vector(acme, "unused", seed=2)
    make_persona(acme, "support", used)
    path = "/admin/personas/steeringvector/{}/delete/"
    assert "no draft or revision uses" in messages_after(operator, path.format(used.pk), {"post": "yes"})
    operator.post(path.format(unused.pk), {"post": "yes"})
    assert list(SteeringVector.objects.all()) == [used]


def test_keys_are_revoked_and_their_digests_not_shown(operator: Client, acme: Tenant) -> None:
    key, text = services.issue_api_key(tenant=acme, name="backend")
    page = operator.get(f"/admin/personas/apikey/{key.pk}/change/").content.decode()
    assert key.prefix in page
    assert key.digest not in page
    operator.post("/admin/personas/apikey/", {"action": "revoke", "_selected_action": [key.pk]})
    assert find_api_key(text) is None


def test_an_engine_is_registered_and_keeps_its_key_when_none_is_typed(operator: Client) -> None:
    data = {"name": "gpu-1", "url": "http://gpu-1:8000", "new_api_key": "engine-secret"}
    operator.post("/admin/inference/engine/add/", data)
    engine = Engine.objects.get()
    page = operator.get(f"/admin/inference/engine/{engine.pk}/change/").content.decode()
    assert "engine-secret" not in page
    assert engine.encrypted_api_key not in page
    operator.post(f"/admin/inference/engine/{engine.pk}/change/", {"url": "http://gpu-1:9000", "new_api_key": ""})
    engine.refresh_from_db()
    assert (engine.name, engine.url, engine.api_key) == ("gpu-1", "http://gpu-1:9000", "engine-secret")


def test_engines_are_disabled_and_removed(operator: Client) -> None:
    engine = register_engine(name="local", url="http://127.0.0.1:1")
    assert operator.get("/admin/inference/engine/").status_code == 200
    operator.post("/admin/inference/engine/", {"action": "disable", "_selected_action": [engine.pk]})
    engine.refresh_from_db()
    assert not engine.enabled
    operator.post(f"/admin/inference/engine/{engine.pk}/delete/", {"post": "yes"})
    assert not Engine.objects.exists()


def test_the_command_prints_a_key_that_works(acme: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("issue_api_key", "acme", name="backend", days=3)
    key = find_api_key(capsys.readouterr().out.strip())
    assert key is not None
    assert key.tenant == acme
    assert key.expires_at is not None


def test_the_command_names_a_tenant_that_is_missing(db: None) -> None:
    with pytest.raises(CommandError, match="there is no tenant acme"):
        call_command("issue_api_key", "acme", name="backend")
