"""What the API takes and answers about adapters."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from personas.api.fields import Input, ListQuery, Ordering, Text
from personas.api.shapes import Slug
from personas.models import Adapter


class AdapterShape(serializers.Serializer[Adapter]):
    """A LoRA adapter; its numbers are its files."""

    digest = serializers.CharField(help_text="SHA-256 of what is stored of it")
    name = serializers.CharField()
    description = serializers.CharField()
    base_model = serializers.CharField()
    rank = serializers.IntegerField(help_text="The largest of any module")
    target_modules = serializers.ListField(child=serializers.CharField())
    num_parameters = serializers.IntegerField()
    size_bytes = serializers.IntegerField()
    created_at = serializers.DateTimeField()


class AdapterForm(Input):
    """An upload: `file`, or `config` and `weights`."""

    name = Slug()
    description = Text(max_length=2000, allow_blank=True, required=False, default="")
    file = serializers.FileField(
        required=False, allow_empty_file=True, help_text="A zip, tar or tar.gz of an adapter in PEFT layout"
    )
    config = serializers.FileField(required=False, allow_empty_file=True, help_text="Its adapter_config.json")
    weights = serializers.FileField(required=False, allow_empty_file=True, help_text="Its adapter_model.safetensors")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        given = {name for name in ("file", "config", "weights") if name in attrs}
        if given not in ({"file"}, {"config", "weights"}):
            raise serializers.ValidationError({"file": "an archive, or config and weights instead"})
        return attrs


class AdapterChanges(Input):
    """What is left out stays as it is; the adapter itself never changes."""

    name = Slug(required=False)
    description = Text(max_length=2000, allow_blank=True, required=False)


class AdapterQuery(ListQuery):
    ordering = Ordering("name", "created_at", "size_bytes", default="name")
    name = Text(required=False, max_length=63)
    base_model = Text(required=False, max_length=300)
    lookups: ClassVar = {"name": "name", "base_model": "base_model"}
