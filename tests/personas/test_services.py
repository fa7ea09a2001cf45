"""Every change: what it does, that it is on record, and who hears of it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from personas import changes, services, vector_files
from personas.changes import CHANNEL
from personas.errors import (
    InvalidDefinition,
    InvalidExpiry,
    InvalidField,
    InvalidSlug,
    LastOwner,
    NameTaken,
    UnknownRevision,
    UnknownUser,
    VectorInUse,
)
from personas.models import AuditEvent, Membership, Persona, PersonaRevision, SteeringVector, Tenant
from steerguard.vectors import read_vector
from tests.conftest import MakePersona, MakeVector, random_vector


def last_event() -> AuditEvent:
    event = AuditEvent.objects.first()
    assert event is not None
    return event


@contextmanager
def hearing(valkey: redis.Redis) -> Iterator[list[dict[str, Any]]]:
    """The changes announced within the block, once it is left."""
    heard: list[dict[str, Any]] = []
    with valkey.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
        channel.subscribe(CHANNEL)
        channel.get_message(timeout=60)  # the subscription's own acknowledgement
        yield heard
        valkey.publish(CHANNEL, '"the end"')  # which comes after whatever was announced before
        while (change := json.loads(next(channel.listen())["data"])) != "the end":
            heard.append(change)


# --- tenants and members


def test_a_new_tenant_has_its_owner_and_is_on_record(alice: User) -> None:
    tenant = services.create_tenant(slug="acme", name="Acme", owner=alice, actor=alice)
    membership = tenant.memberships.get()
    assert (membership.user, membership.role) == (alice, "owner")
    assert membership.may_manage
    event = last_event()
    assert (event.action, event.target, event.actor, event.tenant) == ("tenant.created", "acme", alice, tenant)


@pytest.mark.parametrize("slug", ["", "Acme", "-acme", "ac me", "acme/x", "a" * 64, "acme\n", "ácme"])
def test_a_name_that_cannot_be_part_of_a_model_name_is_refused(db: None, slug: str) -> None:
    with pytest.raises(InvalidSlug) as refusal:
        services.create_tenant(slug=slug, name="Acme")
    assert refusal.value.field == "slug"
    assert not Tenant.objects.exists()


def test_a_tenants_name_is_taken_once(acme: Tenant) -> None:
    with pytest.raises(NameTaken):
        services.create_tenant(slug="acme", name="Another")


def test_a_members_role_is_changed_by_adding_again(acme: Tenant, bob: User) -> None:
    assert Membership.objects.get(user=bob).may_edit
    services.add_member(tenant=acme, user=bob, role="viewer")
    assert not Membership.objects.get(user=bob).may_edit


def test_an_unknown_role_is_refused(acme: Tenant, charlie: User) -> None:
    with pytest.raises(InvalidField) as refusal:
        services.add_member(tenant=acme, user=charlie, role="emperor")
    assert refusal.value.field == "role"
    assert refusal.value.found == "emperor"


def test_the_last_owner_stays(acme: Tenant, alice: User, bob: User) -> None:
    with pytest.raises(LastOwner):
        services.remove_member(tenant=acme, user=alice)
    with pytest.raises(LastOwner):
        services.add_member(tenant=acme, user=alice, role="editor")
    services.add_member(tenant=acme, user=bob, role="owner")
    services.remove_member(tenant=acme, user=alice, actor=bob)
    assert [member.user for member in acme.memberships.all()] == [bob]
    assert last_event().action == "member.removed"


def test_an_outsider_cannot_be_removed(acme: Tenant, charlie: User) -> None:
    with pytest.raises(UnknownUser):
        services.remove_member(tenant=acme, user=charlie)


# --- API keys


def test_a_key_cannot_expire_in_the_past(acme: Tenant) -> None:
    with pytest.raises(InvalidExpiry):
        services.issue_api_key(tenant=acme, name="x", expires_at=timezone.now() - timedelta(seconds=1))


def test_issuing_and_revoking_are_on_record_without_the_key(acme: Tenant, alice: User) -> None:
    key, text = services.issue_api_key(tenant=acme, name="backend", actor=alice)
    services.revoke_api_key(key=key, actor=alice)
    services.revoke_api_key(key=key, actor=alice)
    events = AuditEvent.objects.filter(action__startswith="key.")
    assert [event.action for event in events] == ["key.revoked", "key.issued"]
    assert text not in str(list(events.values()))


# --- vectors


def test_a_stored_vector_can_be_read_back_from_its_file(acme: Tenant) -> None:
    content = random_vector("warm", layers=(10, 14))
    row = services.store_vector(tenant=acme, vector=content, recommended_alpha=1.5)
    assert (row.name, row.layers, row.hidden_size) == ("warm", [10, 14], 576)
    assert row.norms["14"] == pytest.approx(content.norms[14])
    assert read_vector(vector_files.path_of(row.digest)).digest == content.digest == row.digest
    assert last_event().action == "vector.stored"


def test_storing_the_same_numbers_again_updates_what_is_said_about_them(acme: Tenant) -> None:
    first = services.store_vector(tenant=acme, vector=random_vector("warm"))
    again = services.store_vector(tenant=acme, vector=random_vector("warm"), name="cosy", description="Warm.")
    assert again == first
    assert SteeringVector.objects.get().name == "cosy"
    assert last_event().action == "vector.updated"


def test_newer_numbers_may_take_an_old_name(acme: Tenant, make_vector: MakeVector) -> None:
    old, new = make_vector(acme, "warm", seed=1), make_vector(acme, "warm", seed=2)
    assert old != new
    assert SteeringVector.objects.filter(name="warm").first() == new


def test_a_vector_that_names_no_model_is_refused(acme: Tenant) -> None:
    with pytest.raises(InvalidField) as refusal:
        services.store_vector(tenant=acme, vector=random_vector("warm", base_model=""))
    assert refusal.value.field == "base_model"


def test_a_strength_to_recommend_is_finite(acme: Tenant) -> None:
    with pytest.raises(InvalidField):
        services.store_vector(tenant=acme, vector=random_vector("warm"), recommended_alpha=float("nan"))


def test_the_file_goes_when_its_last_owner_lets_go_of_it(
    acme: Tenant,
    globex: Tenant,
    make_vector: MakeVector,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    mine, theirs = make_vector(acme, "warm"), make_vector(globex, "warm")
    path = vector_files.path_of(mine.digest)
    with django_capture_on_commit_callbacks(execute=True):
        services.delete_vector(vector=mine)
    assert path.exists()
    with django_capture_on_commit_callbacks(execute=True):
        services.delete_vector(vector=theirs)
    assert not path.exists()
    assert last_event().action == "vector.deleted"


def test_a_file_that_went_missing_before_the_commit_is_written_again(
    acme: Tenant, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        row = services.store_vector(tenant=acme, vector=random_vector("warm"))
        vector_files.path_of(row.digest).unlink()
    assert vector_files.path_of(row.digest).exists()


def test_a_vector_stays_while_a_draft_or_an_old_revision_is_made_of_it(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    old, drafted = make_vector(acme, "old", seed=1), make_vector(acme, "drafted", seed=2)
    persona = make_persona(acme, "support", old)
    services.save_draft(persona=persona, definition={})
    services.publish_persona(persona=persona)
    services.save_draft(persona=persona, definition={"blend": [{"vector": drafted.digest}]})
    for vector in (old, drafted):
        with pytest.raises(VectorInUse) as refusal:
            services.delete_vector(vector=vector)
        assert refusal.value.found == vector.name
    services.delete_persona(persona=persona)
    services.delete_vector(vector=old)
    services.delete_vector(vector=drafted)


# --- personas


def test_a_new_persona_is_a_draft(acme: Tenant, bob: User, make_vector: MakeVector) -> None:
    vector = make_vector(None, "warm")
    persona = services.create_persona(
        tenant=acme,
        slug="support",
        name="Support",
        definition={"blend": [{"vector": vector.digest, "alpha": 2}], "system_prompt": "Be kind."},
        actor=bob,
    )
    assert persona.published is None
    assert persona.has_unpublished_changes
    assert persona.draft["blend"][0] == {
        "vector": vector.digest,
        "skill": "warm",
        "alpha": 2.0,
        "positions": "all",
        "layers": None,
    }
    assert (last_event().action, last_event().target) == ("persona.created", "acme/support")


def test_a_persona_of_anothers_vector_is_refused(acme: Tenant, globex: Tenant, make_vector: MakeVector) -> None:
    secret = make_vector(acme, "secret")
    with pytest.raises(InvalidDefinition):
        services.create_persona(
            tenant=globex, slug="spy", name="Spy", definition={"blend": [{"vector": secret.digest}]}
        )
    assert not globex.personas.exists()


@pytest.mark.parametrize("character", ["\0", "\n", "\x7f", "\x85", "\u202e", "\u2066", "\u2069", "\ud800"])
def test_a_name_that_would_read_as_another_is_refused(character: str, acme: Tenant, make_persona: MakePersona) -> None:
    persona = make_persona(acme, "support")
    changes_of_names: list[Callable[[str], object]] = [
        lambda name: services.create_tenant(slug="other", name=name),
        lambda name: services.create_persona(tenant=acme, slug="other", name=name),
        lambda name: services.update_persona(persona=persona, name=name),
        lambda name: services.issue_api_key(tenant=acme, name=name),
    ]
    for change in changes_of_names:
        with pytest.raises(InvalidField) as refusal:
            change(f"Sup{character}port")
        assert refusal.value.field == "name"
        assert refusal.value.found == f"U+{ord(character):04X}"
    persona.refresh_from_db()
    assert persona.name == "Support"


def test_a_vectors_name_is_part_of_model_names(acme: Tenant) -> None:
    with pytest.raises(InvalidSlug):
        services.store_vector(tenant=acme, vector=random_vector("warm\u202e"))


@pytest.mark.parametrize("character", ["\0", "\udfff"])
def test_a_text_that_cannot_be_stored_everywhere_is_refused(
    character: str, acme: Tenant, make_persona: MakePersona
) -> None:
    persona = make_persona(acme, "support")
    vector = random_vector("warm")
    text = f"a{character}b"
    changes_of_texts: list[tuple[str, Callable[[], object]]] = [
        ("description", lambda: services.create_persona(tenant=acme, slug="other", name="Other", description=text)),
        ("description", lambda: services.update_persona(persona=persona, description=text)),
        ("description", lambda: services.store_vector(tenant=acme, vector=vector, description=text)),
        ("source", lambda: services.store_vector(tenant=acme, vector=vector, source={"by": [text]})),
        ("source", lambda: services.store_vector(tenant=acme, vector=vector, source={text: 1})),
    ]
    for field, change in changes_of_texts:
        with pytest.raises(InvalidField) as refusal:
            change()
        assert refusal.value.field == field


def test_a_vectors_model_has_no_nul_in_its_name(acme: Tenant) -> None:
    with pytest.raises(InvalidField) as refusal:
        services.store_vector(tenant=acme, vector=random_vector("warm", base_model="a\0b"))
    assert (refusal.value.field, refusal.value.found) == ("base_model", "U+0000")


def test_a_description_may_have_lines_and_a_name_any_script(acme: Tenant) -> None:
    persona = services.create_persona(tenant=acme, slug="a", name="Zoë 🌻 مرحبا", description="One.\nTwo.\tThree.")
    assert persona.description == "One.\nTwo.\tThree."


def test_a_personas_name_is_taken_once_per_tenant(acme: Tenant, make_persona: MakePersona) -> None:
    make_persona(acme, "support")
    with pytest.raises(NameTaken):
        make_persona(acme, "support")


def test_saving_a_draft_changes_nothing_that_requests_get(acme: Tenant, make_persona: MakePersona) -> None:
    persona = make_persona(acme, "support", system_prompt="One.")
    persona = services.save_draft(persona=persona, definition={"system_prompt": "Two."})
    assert persona.published is not None
    assert persona.published.definition["system_prompt"] == "One."
    assert persona.has_unpublished_changes


def test_a_refused_draft_leaves_the_old_one(acme: Tenant, make_persona: MakePersona) -> None:
    persona = make_persona(acme, "support", system_prompt="One.")
    with pytest.raises(InvalidDefinition):
        services.save_draft(persona=persona, definition={"system_prompt": 2})
    persona.refresh_from_db()
    assert persona.draft["system_prompt"] == "One."


def test_publishing_makes_the_next_revision(
    acme: Tenant, bob: User, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    vector = make_vector(acme, "warm")
    persona = make_persona(acme, "support", vector)
    services.save_draft(persona=persona, definition={"system_prompt": "Two."})
    revision = services.publish_persona(persona=persona, actor=bob)
    persona.refresh_from_db()
    assert persona.published == revision
    assert (revision.number, revision.created_by) == (2, bob)
    assert not persona.has_unpublished_changes
    assert list(persona.revisions.get(number=1).vectors.all()) == [vector]
    assert (last_event().action, last_event().target) == ("persona.published", "acme/support@2")


def test_rolling_back_publishes_a_new_revision_equal_to_the_old_one(
    acme: Tenant, alice: User, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    vector = make_vector(acme, "warm")
    persona = make_persona(acme, "support", vector, system_prompt="One.")
    services.save_draft(persona=persona, definition={"system_prompt": "Two."})
    services.publish_persona(persona=persona)
    revision = services.roll_back_persona(persona=persona, number=1, actor=alice)
    persona.refresh_from_db()
    assert persona.published == revision
    assert revision.number == 3
    assert revision.definition == persona.revisions.get(number=1).definition
    assert list(revision.vectors.all()) == [vector]
    assert persona.draft["system_prompt"] == "Two."
    assert last_event().detail == {"number": 3, "equal_to": 1}


def test_there_is_no_rolling_back_to_a_revision_of_another_persona(acme: Tenant, make_persona: MakePersona) -> None:
    other, persona = make_persona(acme, "other"), make_persona(acme, "support")
    services.publish_persona(persona=other)
    with pytest.raises(UnknownRevision):
        services.roll_back_persona(persona=persona, number=2)


@pytest.mark.django_db(transaction=True)
def test_people_who_publish_at_once_get_different_numbers(acme: Tenant, make_persona: MakePersona) -> None:
    persona = make_persona(acme, "support")
    numbers: list[int] = []
    start = threading.Barrier(6)

    def publish() -> None:
        try:
            start.wait()
            for _ in range(3):
                numbers.append(services.publish_persona(persona=persona).number)
        finally:
            connection.close()

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(2, 20))
    persona.refresh_from_db()
    assert persona.published is not None
    assert persona.published.number == 19


# --- who hears of it


@pytest.mark.django_db(transaction=True)
def test_a_change_is_announced_once_it_is_committed(
    valkey: redis.Redis, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    with hearing(valkey) as heard:
        vector = make_vector(acme, "warm")
        persona = services.create_persona(tenant=acme, slug="support", name="Support")
        services.publish_persona(persona=persona)
        key, _text = services.issue_api_key(tenant=acme, name="backend")
        services.revoke_api_key(key=key)
    assert heard == [
        {"kind": "vector", "tenant": "acme", "digest": vector.digest},
        {"kind": "persona", "tenant": "acme", "persona": "support"},
        {"kind": "persona", "tenant": "acme", "persona": "support"},
        {"kind": "key", "tenant": "acme", "prefix": key.prefix},
        {"kind": "key", "tenant": "acme", "prefix": key.prefix},
    ]


@pytest.mark.django_db(transaction=True)
def test_a_change_that_is_taken_back_is_neither_announced_nor_on_record(valkey: redis.Redis, acme: Tenant) -> None:
    with hearing(valkey) as heard, pytest.raises(RuntimeError), transaction.atomic():
        services.create_persona(tenant=acme, slug="support", name="Support")
        raise RuntimeError
    assert heard == []
    assert not Persona.objects.exists()
    assert not AuditEvent.objects.filter(action="persona.created").exists()


@pytest.mark.django_db(transaction=True)
def test_a_change_is_made_although_valkey_is_away(acme: Tenant, settings: Settings) -> None:
    settings.REDIS_URL = "unix:///nonexistent/valkey.sock"
    changes.valkey.cache_clear()
    try:
        persona = services.create_persona(tenant=acme, slug="support", name="Support")
        services.publish_persona(persona=persona)
    finally:
        changes.valkey.cache_clear()
    assert PersonaRevision.objects.get().persona == persona
