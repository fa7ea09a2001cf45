"""Puts the demo into the database, and on later runs only what is missing or has changed in the content.

Everything goes through personas/services.py, one transaction an object, so a run that is stopped half-way is
finished by the next. What people have changed is theirs: a persona is brought up to date only while every
revision of it is the demo's own (no author) and its draft is what was published.
"""

import secrets
from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import User

from personas import services, vector_files
from personas.api_keys import find_api_key
from personas.definition import parse_definition
from personas.demo.catalog import Catalog, DemoTenant
from personas.demo.credentials import Credentials
from personas.demo.vectors import MadeVector
from personas.manifest import WantedPersona
from personas.models import Membership, Persona, SteeringVector, Tenant

KEY_NAME = "Demo"


def store_vectors(made: Mapping[str, MadeVector]) -> dict[str, SteeringVector]:
    """The shared rows of the demo's vectors, by skill."""
    return {name: _store_vector(one) for name, one in made.items()}


def seed_users(credentials: Credentials) -> User:
    """The demo user and the operator; their passwords go into `credentials`. Returns the demo user.

    The demo user whose password is lost gets a new one. An operator who is already there is left alone.
    """
    demo = User.objects.filter(username=credentials.user).first()
    if demo is None or credentials.password is None:
        credentials.password = credentials.password or secrets.token_urlsafe(9)
        demo = demo or User(username=credentials.user)
        demo.set_password(credentials.password)
        demo.save()
    if not User.objects.filter(username=credentials.admin_user).exists():
        credentials.admin_password = credentials.admin_password or secrets.token_urlsafe(15)
        User.objects.create_superuser(credentials.admin_user, password=credentials.admin_password)
    return demo


def seed_tenant(wanted: DemoTenant, *, demo_user: User, credentials: Credentials) -> None:
    """One tenant, its demo member and its key, which goes into `credentials`."""
    tenant = Tenant.objects.filter(slug=wanted.slug).first()
    tenant = tenant or services.create_tenant(slug=wanted.slug, name=wanted.name)
    if not Membership.objects.filter(tenant=tenant, user=demo_user).exists():
        services.add_member(tenant=tenant, user=demo_user, role=wanted.demo_role)
    credentials.api_keys[wanted.slug] = _working_key(tenant, credentials.api_keys.get(wanted.slug))


def seed_personas(wanted: DemoTenant, vectors: Mapping[str, SteeringVector]) -> int:
    """The personas of a tenant that is there. Returns how many were made or changed."""
    tenant = Tenant.objects.get(slug=wanted.slug)
    return sum(_seed_persona(tenant, persona, vectors) for persona in wanted.personas)


def name_first_persona(catalog: Catalog, credentials: Credentials) -> None:
    """Says in `credentials` which persona a newcomer meets, and with which key."""
    credentials.persona = catalog.first_persona
    credentials.api_key = credentials.api_keys[catalog.first_persona.split("/")[0]]


def _store_vector(made: MadeVector) -> SteeringVector:
    recipe, vector = made.recipe, made.vector
    low, high = recipe.window
    wanted: dict[str, Any] = {
        "name": recipe.name,
        "description": recipe.description,
        "recommended_alpha": made.alpha,
        "recommended_positions": recipe.positions,
        "source": {
            **vector.provenance,
            "demo": True,
            "opposite": recipe.opposite,
            # The window was read on the tuned model, and scales as the strength does.
            "window": [round(low / recipe.alpha * made.alpha, 3), round(high / recipe.alpha * made.alpha, 3)],
            "note": recipe.note,
        },
    }
    row = SteeringVector.objects.filter(tenant=None, digest=vector.digest).first()
    if row is not None and vector_files.path_of(vector.digest).exists():
        is_current = all(getattr(row, field) == value for field, value in wanted.items())
        if is_current:
            return row
    return services.store_vector(tenant=None, vector=vector, **wanted)


def _working_key(tenant: Tenant, known: str | None) -> str:
    key = find_api_key(known) if known else None
    if known and key is not None and key.tenant_id == tenant.pk:
        return known
    for lost in tenant.api_keys.filter(name=KEY_NAME, revoked_at=None):
        services.revoke_api_key(key=lost)
    return services.issue_api_key(tenant=tenant, name=KEY_NAME)[1]


def _seed_persona(tenant: Tenant, wanted: WantedPersona, vectors: Mapping[str, SteeringVector]) -> bool:
    """Whether anything had to be done."""
    definition = wanted.definition(vectors.get)
    persona = tenant.personas.filter(slug=wanted.slug).select_related("published").first()
    if persona is None:
        persona = services.create_persona(
            tenant=tenant,
            slug=wanted.slug,
            name=wanted.name,
            description=wanted.description,
            definition=definition,
        )
        services.publish_persona(persona=persona)
        return True
    if not _is_untouched(persona):
        return False
    changed = False
    if (persona.name, persona.description) != (wanted.name, wanted.description):
        services.update_persona(persona=persona, name=wanted.name, description=wanted.description)
        changed = True
    if persona.published is None or not _says(persona.published.definition, definition):
        services.save_draft(persona=persona, definition=definition)
        services.publish_persona(persona=persona)
        changed = True
    return changed


def _is_untouched(persona: Persona) -> bool:
    if persona.revisions.exclude(created_by=None).exists():
        return False
    return persona.published is None or not persona.has_unpublished_changes


def _says(stored: Mapping[str, object], definition: dict[str, object]) -> bool:
    return stored == parse_definition(definition).as_json()
