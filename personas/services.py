"""Every change to what tenants own, one function each: in a transaction, with an audit row, announced on commit.

Whoever calls has already decided that `actor` may do it (Membership.may_edit, .may_manage); `actor` is None for
a command. What is asked wrongly raises a Refusal (personas/errors.py) and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import models, transaction
from django.utils import timezone

from personas import vector_files
from personas.api_keys import digest_of, make_key_text
from personas.audit import record
from personas.changes import announce
from personas.definition import Definition, find_vectors, name_skills, parse_definition
from personas.errors import (
    InvalidExpiry,
    InvalidField,
    LastOwner,
    NameTaken,
    TooMany,
    UnknownRevision,
    UnknownUser,
    VectorInUse,
)
from personas.models import (
    LIMIT_NAMES,
    ApiKey,
    Membership,
    Persona,
    PersonaRevision,
    SteeringVector,
    Tenant,
)
from personas.validation import check_slug, saved
from steerguard.vectors import SteeringVector as VectorContent
from steerguard.vectors import write_vector

MAX_GRACE = timedelta(days=7)

# How many of each one tenant may have. Far above what anybody needs: they bound what one can do to the others.
MAX_MEMBERS = 10_000
MAX_KEYS = 10_000  # revoked ones too
MAX_VECTORS = 10_000
MAX_PERSONAS = 50_000


@transaction.atomic
def create_tenant(*, slug: str, name: str, owner: User | None = None, actor: User | None = None) -> Tenant:
    """A new tenant, with its first owner if one is named. Raises InvalidSlug, NameTaken, InvalidField."""
    check_slug("slug", slug)
    if Tenant.objects.filter(slug=slug).exists():
        raise NameTaken("slug", "a tenant name that is free", slug)
    tenant = saved(Tenant(slug=slug, name=name))
    if owner is not None:
        saved(Membership(user=owner, tenant=tenant, role=Membership.Role.OWNER))
    detail = {"owner": owner.get_username()} if owner else {}
    record(tenant, actor, "tenant.created", slug, detail)
    announce("tenant", tenant=slug)
    return tenant


@transaction.atomic
def add_member(*, tenant: Tenant, user: User, role: str, actor: User | None = None) -> Membership:
    """Make `user` a member, or change a member's role. Raises LastOwner, InvalidField."""
    _lock(tenant)
    membership = tenant.memberships.filter(user=user).first() or Membership(user=user, tenant=tenant)
    if membership.pk is None:
        _check_room(tenant.memberships, MAX_MEMBERS, "user", "members")
    if membership.role == Membership.Role.OWNER and role != Membership.Role.OWNER:
        _check_other_owner(tenant, membership)
    membership.role = role
    saved(membership)
    record(tenant, actor, "member.added", user.get_username(), {"role": role})
    announce("tenant", tenant=tenant.slug)
    return membership


@transaction.atomic
def remove_member(*, tenant: Tenant, user: User, actor: User | None = None) -> None:
    """Raises UnknownUser when `user` is no member, LastOwner."""
    _lock(tenant)
    membership = tenant.memberships.filter(user=user).first()
    if membership is None:
        raise UnknownUser("user", f"a member of {tenant.slug}", user.get_username())
    if membership.role == Membership.Role.OWNER:
        _check_other_owner(tenant, membership)
    membership.delete()
    record(tenant, actor, "member.removed", user.get_username())
    announce("tenant", tenant=tenant.slug)


@transaction.atomic
def update_tenant(
    *,
    tenant: Tenant,
    name: str | None = None,
    allows_base_model: bool | None = None,
    logs_prompts: bool | None = None,
    limits: Mapping[str, int | None] | None = None,
    actor: User | None = None,
) -> Tenant:
    """Change what is given; `limits` by their names in LIMIT_NAMES, None lifting one. Raises InvalidField."""
    tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
    changes = {"name": name, "allows_base_model": allows_base_model, "logs_prompts": logs_prompts}
    changes = {field: value for field, value in changes.items() if value is not None}
    for field, value in changes.items():
        setattr(tenant, field, value)
    _set_limits(tenant, limits)
    saved(tenant)
    record(tenant, actor, "tenant.updated", tenant.slug, {**changes, **(limits or {})})
    announce("tenant", tenant=tenant.slug)
    return tenant


@transaction.atomic
def issue_api_key(
    *,
    tenant: Tenant,
    name: str,
    expires_at: datetime | None = None,
    scopes: Sequence[str] = (ApiKey.Scope.INFERENCE.value,),
    personas: Sequence[str] | None = None,
    limits: Mapping[str, int | None] | None = None,
    actor: User | None = None,
) -> tuple[ApiKey, str]:
    """A new key and its text, which can't be had again. Raises InvalidExpiry, InvalidField."""
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidExpiry("expires_at", "a time to come, or none", expires_at.isoformat())
    _lock(tenant)
    _check_room(tenant.api_keys, MAX_KEYS, "name", "keys")
    prefix, text = make_key_text()
    key = ApiKey(tenant=tenant, name=name, prefix=prefix, digest=digest_of(text), expires_at=expires_at)
    key.scopes = _checked_scopes(scopes)
    key.personas = None if personas is None else _checked_slugs(personas, tenant)
    _set_limits(key, limits)
    saved(key)
    record(tenant, actor, "key.issued", prefix, {"name": name, "scopes": key.scopes, "personas": key.personas})
    announce("key", tenant=tenant.slug, prefix=prefix)
    return key, text


@transaction.atomic
def update_api_key(
    *,
    key: ApiKey,
    name: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    actor: User | None = None,
) -> ApiKey:
    """Change a key's name and limits; what it may do is for good. Raises InvalidField."""
    key = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key.pk)
    key.name = key.name if name is None else name
    _set_limits(key, limits)
    saved(key)
    record(key.tenant, actor, "key.updated", key.prefix, {"name": key.name, **(limits or {})})
    announce("key", tenant=key.tenant.slug, prefix=key.prefix)
    return key


@transaction.atomic
def rotate_api_key(*, key: ApiKey, grace: timedelta = timedelta(0), actor: User | None = None) -> tuple[ApiKey, str]:
    """A new key that may do what `key` may, and its text; `key` ends after `grace`, at most a week.

    Raises InvalidField for another grace, InvalidExpiry for a key that has ended.
    """
    key = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key.pk)
    if not timedelta(0) <= grace <= MAX_GRACE:
        raise InvalidField("grace_s", f"0 to {MAX_GRACE.total_seconds():.0f} seconds", f"{grace.total_seconds():g}")
    if not key.is_valid():
        raise InvalidExpiry("key", "one that is neither revoked nor expired", key.prefix)
    successor, text = issue_api_key(
        tenant=key.tenant,
        name=key.name,
        expires_at=key.expires_at,
        scopes=key.scopes,
        personas=key.personas,
        limits={name: getattr(key, name) for name in LIMIT_NAMES},
        actor=actor,
    )
    if grace:
        end = timezone.now() + grace
        key.expires_at = end if key.expires_at is None else min(end, key.expires_at)
        key.save(update_fields=["expires_at"])
        announce("key", tenant=key.tenant.slug, prefix=key.prefix)
    else:
        revoke_api_key(key=key, actor=actor)
    record(key.tenant, actor, "key.rotated", key.prefix, {"successor": successor.prefix})
    return successor, text


@transaction.atomic
def revoke_api_key(*, key: ApiKey, actor: User | None = None) -> ApiKey:
    """From now on the key opens nothing. Revoking a revoked key changes nothing."""
    key = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key.pk)
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        record(key.tenant, actor, "key.revoked", key.prefix, {"name": key.name})
        announce("key", tenant=key.tenant.slug, prefix=key.prefix)
    return key


@transaction.atomic
def store_vector(
    *,
    tenant: Tenant | None,
    vector: VectorContent,
    name: str | None = None,
    description: str = "",
    recommended_alpha: float | None = None,
    recommended_positions: str = "all",
    source: Mapping[str, Any] | None = None,
    actor: User | None = None,
) -> SteeringVector:
    """Store a vector for a tenant, or for everybody (`tenant` None), under `name` or the vector's own name.

    Storing the same numbers again updates what is said about them and returns the row there was. `source`
    defaults to the vector's provenance. Raises InvalidSlug, InvalidField.
    """
    name = name if name is not None else vector.name
    check_slug("name", name)
    if not vector.base_model:
        raise InvalidField("base_model", "the name of the model that the vector was made for", "none")
    if recommended_alpha is not None and not math.isfinite(recommended_alpha):
        raise InvalidField("recommended_alpha", "a finite number, or none", str(recommended_alpha))
    if tenant is not None:
        _lock(tenant)
    row = SteeringVector.objects.filter(tenant=tenant, digest=vector.digest).first()
    is_new = row is None
    if is_new and tenant is not None:
        _check_room(tenant.vectors, MAX_VECTORS, "vector", "vectors")
    row = row or SteeringVector(tenant=tenant, digest=vector.digest)
    row.name = name
    row.description = description
    row.base_model = vector.base_model
    row.hidden_size = vector.hidden_size
    row.layers = list(vector.layers)
    row.norms = {str(layer): norm for layer, norm in vector.norms.items()}
    row.recommended_alpha = recommended_alpha
    row.recommended_positions = recommended_positions
    row.source = dict(vector.provenance if source is None else source)
    saved(row)
    data = write_vector(vector)
    vector_files.ensure(vector.digest, data)
    transaction.on_commit(lambda: vector_files.ensure(vector.digest, data))
    action = "vector.stored" if is_new else "vector.updated"
    record(tenant, actor, action, name, {"digest": vector.digest})
    announce("vector", tenant=tenant.slug if tenant else None, digest=vector.digest)
    return row


UNCHANGED: Any = object()
"""For a value that may be changed to None."""


@transaction.atomic
def update_vector(
    *,
    vector: SteeringVector,
    name: str | None = None,
    description: str | None = None,
    recommended_alpha: float | None = UNCHANGED,
    recommended_positions: str | None = None,
    actor: User | None = None,
) -> SteeringVector:
    """Change what is said about a vector, not its numbers. Raises InvalidSlug, InvalidField."""
    vector = SteeringVector.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=vector.pk)
    if name is not None:
        check_slug("name", name)
        vector.name = name
    vector.description = vector.description if description is None else description
    if recommended_alpha is not UNCHANGED:
        if recommended_alpha is not None and not math.isfinite(recommended_alpha):
            raise InvalidField("recommended_alpha", "a finite number, or none", str(recommended_alpha))
        vector.recommended_alpha = recommended_alpha
    vector.recommended_positions = recommended_positions or vector.recommended_positions
    saved(vector)
    record(vector.tenant, actor, "vector.updated", vector.name, {"digest": vector.digest})
    announce("vector", tenant=vector.tenant.slug if vector.tenant else None, digest=vector.digest)
    return vector


@transaction.atomic
def delete_vector(*, vector: SteeringVector, actor: User | None = None) -> None:
    """Raises VectorInUse while a draft or any revision, even an old one, is made of it."""
    vector = SteeringVector.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=vector.pk)
    if SteeringVector.objects.filter(pk=vector.pk).in_use().exists():
        raise VectorInUse("vector", "one that no draft or revision uses", vector.name)
    tenant, digest = vector.tenant, vector.digest
    vector.delete()
    transaction.on_commit(lambda: vector_files.remove_unused(digest), robust=True)
    record(tenant, actor, "vector.deleted", vector.name, {"digest": digest})
    announce("vector", tenant=tenant.slug if tenant else None, digest=digest)


@transaction.atomic
def create_persona(
    *,
    tenant: Tenant,
    slug: str,
    name: str,
    description: str = "",
    definition: object = None,
    actor: User | None = None,
) -> Persona:
    """A new persona whose draft is `definition` (JSON; None: does nothing).

    Raises InvalidSlug, NameTaken, InvalidField, InvalidDefinition.
    """
    check_slug("slug", slug)
    _lock(tenant)
    if tenant.personas.filter(slug=slug).exists():
        raise NameTaken("slug", f"a persona name that is free in {tenant.slug}", slug)
    _check_room(tenant.personas, MAX_PERSONAS, "slug", "personas")
    draft, vectors = _checked(definition if definition is not None else {}, tenant)
    persona = Persona(tenant=tenant, slug=slug, name=name, description=description, draft=draft.as_json())
    saved(persona)
    persona.draft_vectors.set(vectors)
    record(tenant, actor, "persona.created", persona.model_name)
    _announce_persona(persona)
    return persona


@transaction.atomic
def update_persona(
    *, persona: Persona, name: str | None = None, description: str | None = None, actor: User | None = None
) -> Persona:
    """Change what a persona is called, not what it is. Raises InvalidField."""
    persona = _lock_persona(persona)
    persona.name = persona.name if name is None else name
    persona.description = persona.description if description is None else description
    saved(persona)
    record(persona.tenant, actor, "persona.updated", persona.model_name)
    _announce_persona(persona)
    return persona


@transaction.atomic
def save_draft(*, persona: Persona, definition: object, actor: User | None = None) -> Persona:
    """Replace the draft; what requests get stays as it is. Raises InvalidDefinition."""
    persona = _lock_persona(persona)
    draft, vectors = _checked(definition, persona.tenant)
    persona.draft = draft.as_json()
    saved(persona)
    persona.draft_vectors.set(vectors)
    record(persona.tenant, actor, "persona.draft_saved", persona.model_name)
    _announce_persona(persona)
    return persona


@transaction.atomic
def publish_persona(*, persona: Persona, actor: User | None = None) -> PersonaRevision:
    """Make the draft a new revision, which requests get from now on. Raises InvalidDefinition."""
    persona = _lock_persona(persona)
    definition, vectors = _checked(persona.draft, persona.tenant)
    revision = _add_revision(persona, definition, vectors, actor)
    record(persona.tenant, actor, "persona.published", str(revision), {"number": revision.number})
    return revision


@transaction.atomic
def roll_back_persona(*, persona: Persona, number: int, actor: User | None = None) -> PersonaRevision:
    """Publish a new revision equal to revision `number`; the draft, which is its author's, stays.

    Raises UnknownRevision, InvalidDefinition.
    """
    persona = _lock_persona(persona)
    old = persona.revisions.filter(number=number).first()
    if old is None:
        raise UnknownRevision("number", f"a revision of {persona.model_name}", str(number))
    definition, vectors = _checked(old.definition, persona.tenant)
    revision = _add_revision(persona, definition, vectors, actor)
    detail = {"number": revision.number, "equal_to": number}
    record(persona.tenant, actor, "persona.rolled_back", str(revision), detail)
    return revision


@transaction.atomic
def delete_persona(*, persona: Persona, actor: User | None = None) -> None:
    """Remove a persona and its revisions; its vectors stay."""
    persona = _lock_persona(persona)
    record(persona.tenant, actor, "persona.deleted", persona.model_name)
    _announce_persona(persona)
    persona.delete()


def _set_limits(row: Tenant | ApiKey, limits: Mapping[str, int | None] | None) -> None:
    for name, value in (limits or {}).items():
        if name not in LIMIT_NAMES:
            raise InvalidField("limits", f"only {', '.join(LIMIT_NAMES)}", name[:80])
        setattr(row, name, value)


def _checked_scopes(scopes: Sequence[str]) -> list[str]:
    known = list(ApiKey.Scope.values)
    if not scopes or not all(scope in known for scope in scopes):
        raise InvalidField("scopes", f"some of {', '.join(known)}", ", ".join(map(str, scopes))[:80] or "none")
    return [scope for scope in known if scope in scopes]


def _checked_slugs(slugs: Sequence[str], tenant: Tenant) -> list[str]:
    found = set(tenant.personas.filter(slug__in=slugs).values_list("slug", flat=True))
    if missing := sorted(set(slugs) - found):
        raise InvalidField("personas", f"personas of {tenant.slug}", ", ".join(missing)[:80])
    return sorted(found)


def _add_revision(
    persona: Persona, definition: Definition, vectors: list[SteeringVector], actor: User | None
) -> PersonaRevision:
    """The next number is free because the persona's row is locked."""
    latest = persona.revisions.aggregate(number=models.Max("number"))["number"] or 0
    revision = saved(
        PersonaRevision(persona=persona, number=latest + 1, definition=definition.as_json(), created_by=actor)
    )
    revision.vectors.set(vectors)
    persona.published = revision
    saved(persona)
    _announce_persona(persona)
    return revision


def _checked(definition: object, tenant: Tenant) -> tuple[Definition, list[SteeringVector]]:
    parsed = parse_definition(definition)
    vectors = find_vectors(parsed, tenant)
    return name_skills(parsed, vectors), vectors


def _lock(tenant: Tenant) -> None:
    """Let one change at a time happen to what is counted across a tenant's rows."""
    Tenant.objects.select_for_update().get(pk=tenant.pk)


def _check_room(rows: models.Manager[Any], at_most: int, field: str, what: str) -> None:
    """Whoever calls holds the tenant's lock."""
    if rows.count() >= at_most:
        raise TooMany(field, f"at most {at_most} {what} in a tenant", "as many already")


def _lock_persona(persona: Persona) -> Persona:
    """The persona as it is now, kept from other changes until the transaction ends."""
    return Persona.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=persona.pk)


def _check_other_owner(tenant: Tenant, membership: Membership) -> None:
    if not tenant.memberships.filter(role=Membership.Role.OWNER).exclude(pk=membership.pk).exists():
        raise LastOwner("role", f"another owner of {tenant.slug} first", "the last owner")


def _announce_persona(persona: Persona) -> None:
    announce("persona", tenant=persona.tenant.slug, persona=persona.slug)
