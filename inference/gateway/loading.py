"""The database as a Directory. All of the gateway's ORM is here; it is synchronous and runs in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, cast

import structlog
from django.db import connections
from django.db.models import Max, Q
from django.utils import timezone

from inference import models as inference_models
from inference import secret_text
from inference.gateway.directory import Directory, Engine, Key, Limits, Persona, Revision, Skill, Tenant
from personas import models
from personas.changes import Kind
from personas.definition import Definition, PositionsName, parse_definition
from personas.errors import InvalidDefinition

log = structlog.get_logger("gateway")

ALL_KINDS: frozenset[Kind] = frozenset({"tenant", "key", "vector", "persona", "engine"})


class DirectoryLoader:
    """Reads what changed and keeps the rest."""

    def __init__(self) -> None:
        # Revisions never change, so each one's definition is checked once and not again at every reload.
        self._definitions: dict[int, Definition | None] = {}

    def load(self, kinds: Set[Kind], before: Directory) -> Directory:
        """`before` with everything of `kinds` read anew. Raises django.db.Error."""
        if "tenant" in kinds:
            kinds = ALL_KINDS
        parts: dict[str, Any] = {}
        try:
            if "tenant" in kinds:
                parts["tenants"] = dict(_load_tenants())
            if "key" in kinds:
                parts["keys"] = {key.prefix: key for key in _load_keys()}
            if "persona" in kinds:
                parts["personas"] = self._load_personas()
            if "vector" in kinds:
                parts["skills"] = _load_skills()
            if "engine" in kinds:
                parts["engines"] = tuple(_load_engines())
        finally:
            connections.close_all()
        return replace(before, **parts)

    def load_revision(self, tenant: str, persona: str, number: int) -> Revision | None:
        """One revision by number, published or not. Raises django.db.Error."""
        try:
            row = (
                models.PersonaRevision.objects.filter(
                    persona__tenant__slug=tenant, persona__slug=persona, number=number
                )
                .select_related("persona__tenant")
                .first()
            )
            if row is None:
                return None
            return self._revision(row, _base_models(Q(pk=row.pk)))
        finally:
            connections.close_all()

    def _load_personas(self) -> dict[tuple[str, str], Persona]:
        rows = list(
            models.Persona.objects.filter(published__isnull=False)
            .select_related("tenant", "published")
            .order_by("tenant__slug", "slug")
        )
        newest = dict(models.PersonaRevision.objects.values_list("persona").annotate(Max("number")))
        base_models = _base_models(Q(pk__in=models.Persona.objects.values("published_id")))
        personas: dict[tuple[str, str], Persona] = {}
        for row in rows:
            published = cast(models.PersonaRevision, row.published)
            published.persona = row
            if (revision := self._revision(published, base_models)) is not None:
                personas[row.tenant.slug, row.slug] = Persona(
                    revision, newest.get(row.pk, published.number), row.created_at
                )
        wanted = {row.published_id for row in rows}
        self._definitions = {pk: known for pk, known in self._definitions.items() if pk in wanted}
        return personas

    def _revision(self, row: models.PersonaRevision, base_models: Mapping[int, str]) -> Revision | None:
        known = self._definitions
        definition = known[row.pk] if row.pk in known else _parse(row)
        known[row.pk] = definition
        if definition is None:
            return None
        persona = row.persona
        return Revision(persona.tenant.slug, persona.slug, row.number, definition, base_models.get(row.pk))


def _parse(row: models.PersonaRevision) -> Definition | None:
    try:
        return parse_definition(row.definition)
    except InvalidDefinition as error:
        # One unreadable persona must not take the others off the air; it is not served wrongly but not at all.
        log.error("persona can't be served", revision=row.pk, error=str(error))
        return None


def _base_models(revisions: Q) -> dict[int, str]:
    """The base model of each revision's vectors, which personas.definition keeps to one per revision."""
    found = models.PersonaRevision.objects.filter(revisions, vectors__isnull=False)
    return dict(found.values_list("pk", "vectors__base_model"))


def _load_tenants() -> Iterator[tuple[str, Tenant]]:
    for row in models.Tenant.objects.all():
        yield row.slug, Tenant(row.allows_base_model, row.logs_prompts, _limits(row))


def _load_keys() -> Iterator[Key]:
    rows = models.ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=timezone.now()), revoked_at=None)
    for row in rows.select_related("tenant"):
        yield Key(
            tenant=row.tenant.slug,
            name=row.name,
            prefix=row.prefix,
            digest=row.digest,
            expires_at=row.expires_at,
            scopes=frozenset(row.scopes),
            personas=None if row.personas is None else frozenset(row.personas),
            limits=_limits(row),
        )


def _limits(row: models.Limits) -> Limits:
    return Limits(**{name: getattr(row, name) for name in models.LIMIT_NAMES})


def _load_skills() -> dict[tuple[str | None, str], tuple[Skill, ...]]:
    """By owner and name, the newest first: a later upload under a name is what the name means from then on."""
    skills: dict[tuple[str | None, str], tuple[Skill, ...]] = {}
    for row in models.SteeringVector.objects.select_related("tenant").order_by("-created_at", "-pk"):
        owner = row.tenant.slug if row.tenant else None
        alpha = 1.0 if row.recommended_alpha is None else row.recommended_alpha
        positions = cast(PositionsName, row.recommended_positions)
        skill = Skill(row.name, row.digest, row.base_model, alpha, positions)
        skills[owner, row.name] = (*skills.get((owner, row.name), ()), skill)
    return skills


def _load_engines() -> Iterator[Engine]:
    for row in inference_models.Engine.objects.filter(enabled=True).order_by("name"):
        try:
            api_key = row.api_key
        except secret_text.Unreadable as error:
            log.error("engine can't be used", engine=row.name, error=str(error))
            continue
        # Before the first contact, what the operator expects: the name exists, only nobody answers to it yet.
        base_model = row.base_model or row.expected_base_model
        yield Engine(row.name, row.url.rstrip("/"), api_key, base_model, row.status)
