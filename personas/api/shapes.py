"""What the API takes and what it answers, field by field. Rules that hold everywhere live in models and services."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import Q
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from personas.api.fields import MAX_LIMIT, Flag, Input, ListQuery, Ordering, QueryFlag, Text, Whole
from personas.models import (
    LIMIT_NAMES,
    ApiKey,
    Membership,
    Persona,
    PersonaRevision,
    Tenant,
)

MAX_GRACE_S = 7 * 24 * 3600
MAX_USERNAME_CHARS = 150


class Slug(Text):
    """A part of a model name."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("help_text", "At most 63 lowercase letters, digits and inner hyphens")
        super().__init__(max_length=63, **kwargs)


@extend_schema_field({"$ref": "#/components/schemas/Definition"})
class DefinitionField(serializers.JSONField):
    """A persona's definition; personas/definition.py reads and checks it."""


def _name(**kwargs: Any) -> Text:
    return Text(max_length=200, help_text="What people call it", **kwargs)


def _description(**kwargs: Any) -> Text:
    return Text(max_length=2000, allow_blank=True, required=False, **kwargs)


def _limit() -> Whole:
    return Whole(min_value=1, max_value=MAX_LIMIT, allow_null=True, required=False, help_text="null: no limit")


class LimitsInput(Input):
    """How much may be asked for; what is left out stays as it is."""

    requests_per_minute = _limit()
    tokens_per_minute = _limit()
    concurrent_requests = _limit()
    tokens_per_day = _limit()
    tokens_per_month = _limit()


class Limits(serializers.Serializer[Any]):
    """How much may be asked for; null is no limit."""

    requests_per_minute = serializers.IntegerField(allow_null=True)
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    concurrent_requests = serializers.IntegerField(allow_null=True)
    tokens_per_day = serializers.IntegerField(allow_null=True)
    tokens_per_month = serializers.IntegerField(allow_null=True)


# --- tenants


class TenantShape(serializers.Serializer[Tenant]):
    """A tenant, as a member sees it."""

    slug = serializers.CharField()
    name = serializers.CharField()
    role = serializers.ChoiceField(choices=Membership.Role.choices, help_text="The caller's own")
    allows_base_model = serializers.BooleanField(help_text="Keys may ask the base model itself, unsteered")
    logs_prompts = serializers.BooleanField(help_text="Prompts and answers are written to the log")
    limits = Limits(source="*")
    created_at = serializers.DateTimeField()


class TenantInput(Input):
    """A new tenant."""

    slug = Slug()
    name = _name()
    owner = Text(max_length=MAX_USERNAME_CHARS, required=False, help_text="A user name; the caller without it")


class TenantChanges(Input):
    """What is left out stays as it is."""

    name = _name(required=False)
    allows_base_model = Flag(required=False)
    logs_prompts = Flag(required=False)
    limits = LimitsInput(required=False)


class TenantQuery(ListQuery):
    ordering = Ordering("slug", "name", "created_at", default="slug")
    search = Text(required=False, max_length=200, help_text="A part of the slug or the name")

    def filters(self) -> Q:
        return super().filters() & _contains(self.validated_data.get("search"), "slug", "name")


# --- members


class MemberShape(serializers.Serializer[Membership]):
    """A person's place in a tenant."""

    user = serializers.CharField(source="user.username")
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MemberInput(Input):
    """A person to add."""

    user = Text(max_length=MAX_USERNAME_CHARS, help_text="The user name")
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MemberChanges(Input):
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class MemberQuery(ListQuery):
    ordering = Ordering("username", "role", default="username")
    role = serializers.ChoiceField(choices=Membership.Role.choices, required=False)
    lookups: ClassVar = {"role": "role"}


# --- keys


class KeyShape(serializers.Serializer[ApiKey]):
    """A key, without its text."""

    prefix = serializers.CharField(help_text="`sg_<prefix>_…` is how its text begins")
    name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=ApiKey.Scope.choices))
    personas = serializers.ListField(
        child=serializers.CharField(), allow_null=True, help_text="The slugs that it may ask at /v1; null: all"
    )
    limits = Limits(source="*")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="To some seconds")


class IssuedKeyShape(KeyShape):
    """A key and its text, which is shown this once."""

    key = serializers.CharField(help_text="The text: keep it, it can't be had again")


class KeyInput(Input):
    """A key to issue."""

    name = Text(max_length=100, help_text="What it is for")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=ApiKey.Scope.choices), required=False, min_length=1, max_length=3
    )
    personas = serializers.ListField(
        child=Slug(), required=False, allow_null=True, max_length=1000, help_text="Slugs it may ask; null: all"
    )
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    limits = LimitsInput(required=False)


class KeyChanges(Input):
    """What a key may do is for good; issue another one instead."""

    name = Text(max_length=100, required=False)
    limits = LimitsInput(required=False)


class RotationInput(Input):
    grace_s = Whole(
        min_value=0,
        max_value=MAX_GRACE_S,
        required=False,
        default=0,
        help_text="Seconds for which the old key goes on; 0: none",
    )


class KeyQuery(ListQuery):
    ordering = Ordering("created_at", "name", "prefix", default="-created_at")
    valid = QueryFlag(required=False, help_text="Neither revoked nor expired")
    scope = serializers.ChoiceField(choices=ApiKey.Scope.choices, required=False)


# --- personas and revisions


class PersonaShape(serializers.Serializer[Persona]):
    """A persona: what its author works on, and which revision requests get."""

    slug = serializers.CharField()
    model = serializers.CharField(source="model_name", help_text="What requests name it in `model`")
    name = serializers.CharField()
    description = serializers.CharField()
    draft = DefinitionField()
    published = serializers.IntegerField(
        source="published.number", default=None, allow_null=True, help_text="The revision that requests get"
    )
    has_unpublished_changes = serializers.BooleanField()
    created_at = serializers.DateTimeField()


class PersonaInput(Input):
    """A new persona; its draft is published separately."""

    slug = Slug()
    name = _name()
    description = _description(default="")
    draft = DefinitionField(required=False)


class PersonaReplacement(Input):
    """All of a persona but its slug; what is left out becomes empty."""

    name = _name()
    description = _description(default="")
    draft = DefinitionField(required=False)


class PersonaChanges(Input):
    """What is left out stays as it is. A draft is replaced as a whole."""

    name = _name(required=False)
    description = _description()
    draft = DefinitionField(required=False)


class PersonaQuery(ListQuery):
    ordering = Ordering("slug", "name", "created_at", default="slug")
    search = Text(required=False, max_length=200, help_text="A part of the slug or the name")
    published = QueryFlag(required=False, help_text="Requests get some revision of it")
    vector = Text(required=False, max_length=64, help_text="A digest: drafts that are made of it")

    def filters(self) -> Q:
        said = self.validated_data
        found = _contains(said.get("search"), "slug", "name")
        if "published" in said:
            found &= Q(published__isnull=not said["published"])
        if "vector" in said:
            found &= Q(
                pk__in=Persona.draft_vectors.through.objects.filter(steeringvector__digest=said["vector"]).values(
                    "persona_id"
                )
            )
        return found


class RevisionShape(serializers.Serializer[PersonaRevision]):
    """An immutable snapshot of a persona."""

    number = serializers.IntegerField()
    model = serializers.SerializerMethodField(help_text="What requests pin it with in `model`")
    definition = DefinitionField()
    is_published = serializers.SerializerMethodField(help_text="Requests that pin none get this one")
    created_by = serializers.CharField(source="created_by.username", default=None, allow_null=True)
    created_at = serializers.DateTimeField()

    def get_model(self, revision: PersonaRevision) -> str:
        return f"{self.context['persona'].model_name}@{revision.number}"

    def get_is_published(self, revision: PersonaRevision) -> bool:
        return bool(self.context["persona"].published_id == revision.pk)


class RevisionQuery(ListQuery):
    ordering = Ordering("number", default="-number")


class RollBackInput(Input):
    number = Whole(min_value=1, max_value=2**31 - 1, help_text="The revision to publish anew")


class DiffQuery(Input):
    """Two states of a persona: revision numbers, `draft` or `published`."""

    a = Text(
        required=False, default="published", max_length=10, help_text="A revision's number, `draft` or `published`"
    )
    b = Text(required=False, default="draft", max_length=10, help_text="A revision's number, `draft` or `published`")


class ChangeShape(serializers.Serializer[Any]):
    """A field of the definition that differs."""

    field = serializers.CharField()
    a = serializers.JSONField(allow_null=True)
    b = serializers.JSONField(allow_null=True)


class DiffShape(serializers.Serializer[Any]):
    """What differs between two states of a persona."""

    a = serializers.CharField()
    b = serializers.CharField()
    changes = ChangeShape(many=True)
    text = serializers.CharField(help_text="The same as a unified diff of YAML; empty where nothing differs")


class ManifestDraftShape(serializers.Serializer[Any]):
    """What applying a YAML file did to one persona, or would."""

    persona = serializers.CharField()
    action = serializers.ChoiceField(choices=["created", "updated", "published", "unchanged"])
    diff = serializers.CharField()


class AppliedShape(serializers.Serializer[Any]):
    """What applying a YAML file did, or would with `dry_run`."""

    dry_run = serializers.BooleanField()
    personas = ManifestDraftShape(many=True)


class ApplyQuery(Input):
    dry_run = QueryFlag(required=False, default=False, help_text="Answer what would change, and change nothing")


# --- audit log


class AuditShape(serializers.Serializer[Any]):
    """Who did what to what."""

    at = serializers.DateTimeField()
    actor = serializers.CharField(
        source="actor.username",
        default=None,
        allow_null=True,
        help_text="null for a key and for the operator's commands",
    )
    action = serializers.CharField()
    target = serializers.CharField()
    detail = serializers.DictField(help_text="`by_key` is the prefix of the key that did it")


class AuditQuery(ListQuery):
    ordering = Ordering("at", default="-at")
    action = Text(required=False, max_length=50, help_text="Such as `persona.published`")
    target = Text(required=False, max_length=200)
    actor = Text(required=False, max_length=MAX_USERNAME_CHARS)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    lookups: ClassVar = {
        "action": "action",
        "target": "target",
        "actor": "actor__username",
        "since": "at__gte",
        "until": "at__lt",
    }


def _contains(part: str | None, *fields: str) -> Q:
    found = Q()
    for field in fields if part else ():
        found |= Q(**{f"{field}__icontains": part})
    return found


assert set(LimitsInput().fields) == set(LIMIT_NAMES) == set(Limits().fields)
