"""What the API says of engines and usage, field by field."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from inference.models import Engine
from personas.api.fields import Flag, Input, ListQuery, Ordering, Text

MAX_URL_CHARS = 300


class EngineShape(serializers.Serializer[Engine]):
    """An engine, as everybody sees it."""

    name = serializers.CharField()
    status = serializers.ChoiceField(choices=Engine.Status.choices)
    base_model = serializers.CharField(help_text="Empty until it has answered")


class OperatedEngineShape(EngineShape):
    """An engine, as staff see it; its key is never shown."""

    url = serializers.CharField()
    enabled = serializers.BooleanField()
    expected_base_model = serializers.CharField()
    has_api_key = serializers.SerializerMethodField()
    status_detail = serializers.CharField()
    hidden_size = serializers.IntegerField(allow_null=True)
    num_layers = serializers.IntegerField(allow_null=True)
    registered_at = serializers.DateTimeField()
    last_seen_at = serializers.DateTimeField(allow_null=True)

    def get_has_api_key(self, engine: Engine) -> bool:
        return bool(engine.encrypted_api_key)


class ListedEngineShape(serializers.Serializer[Engine]):
    """An engine in the list: staff get all of its fields, others the first three."""

    name = serializers.CharField()
    status = serializers.ChoiceField(choices=Engine.Status.choices)
    base_model = serializers.CharField(help_text="Empty until it has answered")
    url = serializers.CharField(required=False)
    enabled = serializers.BooleanField(required=False)
    expected_base_model = serializers.CharField(required=False)
    has_api_key = serializers.BooleanField(required=False)
    status_detail = serializers.CharField(required=False)
    hidden_size = serializers.IntegerField(allow_null=True, required=False)
    num_layers = serializers.IntegerField(allow_null=True, required=False)
    registered_at = serializers.DateTimeField(required=False)
    last_seen_at = serializers.DateTimeField(allow_null=True, required=False)


class EngineInput(Input):
    """An engine to register."""

    name = Text(max_length=63, help_text="Lowercase letters, digits, dots and hyphens")
    url = Text(max_length=MAX_URL_CHARS, help_text="Scheme, host and port")
    api_key = Text(max_length=1_000, required=False, allow_blank=True, default="", help_text="The engine's own key")
    expected_base_model = Text(
        max_length=300, required=False, allow_blank=True, default="", help_text="Empty: whichever it serves"
    )


class EngineChanges(Input):
    """What is left out stays as it is."""

    url = Text(max_length=MAX_URL_CHARS, required=False)
    api_key = Text(max_length=1_000, required=False, allow_blank=True)
    expected_base_model = Text(max_length=300, required=False, allow_blank=True)
    enabled = Flag(required=False)


class EngineQuery(ListQuery):
    ordering = Ordering("name", "status", "base_model", default="name")
    status = serializers.ChoiceField(choices=Engine.Status.choices, required=False)
    base_model = Text(required=False, max_length=300)
    lookups: ClassVar = {"status": "status", "base_model": "base_model"}


GROUPS = ("day", "persona", "key")


class UsageShape(serializers.Serializer[Any]):
    """What was used in a group; the fields that were not grouped by are left out."""

    day = serializers.DateField(required=False, help_text="In UTC")
    persona = serializers.CharField(required=False, help_text="Empty: the base model")
    key = serializers.CharField(required=False, help_text="The prefix; empty: the dashboard")
    requests = serializers.IntegerField()
    failures = serializers.IntegerField(help_text="Of the requests")
    prompt_tokens = serializers.IntegerField()
    cached_prompt_tokens = serializers.IntegerField(help_text="Of the prompts' tokens")
    completion_tokens = serializers.IntegerField()
    steered_tokens = serializers.IntegerField(help_text="Of the prompts' and completions' tokens")


class UsageQuery(ListQuery):
    ordering = Ordering("day", "persona", "key", "requests", "prompt_tokens", "completion_tokens", default="-day")
    group_by = Text(
        required=False,
        default="day,persona,key",
        max_length=20,
        help_text="Some of day, persona, key, by commas; `ordering` has to be one of them or an amount",
    )
    persona = Text(required=False, allow_blank=True, max_length=63, help_text="Empty: the base model")
    key = Text(required=False, allow_blank=True, max_length=8, help_text="A prefix; empty: the dashboard")
    since = serializers.DateField(required=False, help_text="The first day, in UTC")
    until = serializers.DateField(required=False, help_text="The last day, in UTC")
    lookups: ClassVar = {"persona": "persona", "key": "key"}

    def validate_group_by(self, said: str) -> list[str]:
        names = said.split(",")
        if len(set(names)) < len(names) or not set(names) <= set(GROUPS):
            raise serializers.ValidationError(f"some of {', '.join(GROUPS)}, by commas, each once")
        return names
