"""What the database and the models hold to, whatever code writes to them."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.utils import timezone

from personas.errors import RevisionIsImmutable
from personas.models import Persona, PersonaRevision, SteeringVector, Tenant
from personas.services import issue_api_key, publish_persona
from tests.conftest import MakePersona, MakeVector


def test_a_revision_cannot_be_saved_again(acme: Tenant, make_persona: MakePersona) -> None:
    revision = make_persona(acme, "support", system_prompt="Be kind.").published
    assert revision is not None
    revision.definition = {"system_prompt": "Be rude."}
    with pytest.raises(RevisionIsImmutable):
        revision.save()
    with pytest.raises(RevisionIsImmutable):
        PersonaRevision.objects.filter(pk=revision.pk).update(number=7)
    with pytest.raises(RevisionIsImmutable):
        PersonaRevision.objects.bulk_update([revision], ["definition"])


@pytest.mark.parametrize("column", ["definition = '{}'", "number = 7", "persona_id = persona_id + 1"])
def test_the_database_itself_refuses_to_change_a_revision(acme: Tenant, make_persona: MakePersona, column: str) -> None:
    make_persona(acme, "support")
    with (
        pytest.raises(DatabaseError, match="immutable"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE personas_personarevision SET {column}")


def test_a_revision_outlives_the_person_who_made_it(acme: Tenant, bob: User, make_persona: MakePersona) -> None:
    revision = publish_persona(persona=make_persona(acme, "support"), actor=bob)
    bob.delete()
    revision.refresh_from_db()
    assert revision.created_by is None


def test_a_tenants_rows_go_with_it(acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> None:
    make_persona(acme, "support", make_vector(acme, "warm"))
    acme.delete()
    assert not Persona.objects.exists()
    assert not PersonaRevision.objects.exists()
    assert not SteeringVector.objects.exists()


def test_two_tenants_may_hold_the_same_vector_and_the_same_names(
    acme: Tenant, globex: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    mine, theirs = make_vector(acme, "warm"), make_vector(globex, "warm")
    assert mine.digest == theirs.digest
    assert make_persona(acme, "support").model_name == "acme/support"
    assert make_persona(globex, "support").model_name == "globex/support"


def test_the_database_holds_one_vector_per_tenant_and_digest(acme: Tenant, make_vector: MakeVector) -> None:
    for owner in (acme, None):
        vector = make_vector(owner, "warm")
        vector.pk, vector._state.adding = None, True
        with pytest.raises(IntegrityError), transaction.atomic():
            vector.save()


def test_a_tenant_may_use_its_own_and_shared_vectors_only(
    acme: Tenant, globex: Tenant, make_vector: MakeVector
) -> None:
    own, shared = make_vector(acme, "warm", seed=1), make_vector(None, "formal", seed=2)
    make_vector(globex, "secret", seed=3)
    assert set(SteeringVector.objects.usable_by(acme)) == {own, shared}
    assert set(SteeringVector.objects.usable_by(None)) == {shared}


def test_people_see_the_personas_of_their_own_tenants(
    acme: Tenant, globex: Tenant, bob: User, charlie: User, make_persona: MakePersona
) -> None:
    support, spy = make_persona(acme, "support"), make_persona(globex, "spy")
    assert list(Persona.objects.visible_to(bob)) == [support]
    assert list(Persona.objects.visible_to(charlie)) == [spy]
    assert not Persona.objects.visible_to(AnonymousUser())


def test_staff_see_no_tenants_pages_for_being_staff(acme: Tenant) -> None:
    assert not Tenant.objects.visible_to(User.objects.create_superuser("root"))


def test_a_key_is_valid_until_it_expires(acme: Tenant) -> None:
    now = timezone.now()
    key, _text = issue_api_key(tenant=acme, name="backend", expires_at=now + timedelta(hours=1))
    assert key.is_valid()
    assert not key.is_valid(at=now + timedelta(hours=2))
