"""What the API takes and answers of vectors and their files, field by field."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework import serializers

from personas.api.fields import Input, ListQuery, Number, Ordering, QueryFlag, Text, WholeText
from personas.api.shapes import Slug
from personas.models import Positions, SteeringVector
from steerguard.vectors.exporters import EXPORTS
from steerguard.vectors.importers import CONVENTIONS, NAMES

FILE_FORMATS = list(NAMES)
FILE_HELP = "safetensors, GGUF, .pt (torch.save), .svec or .npy"


def _description(**kwargs: Any) -> Text:
    return Text(max_length=2000, allow_blank=True, required=False, **kwargs)


class VectorShape(serializers.Serializer[SteeringVector]):
    """A steering vector; its numbers are its file."""

    digest = serializers.CharField(help_text="SHA-256 of its numbers")
    name = serializers.CharField(help_text="The skill that it is asked for by")
    is_shared = serializers.SerializerMethodField(help_text="The operator's, for everybody")
    description = serializers.CharField()
    base_model = serializers.CharField()
    hidden_size = serializers.IntegerField()
    layers = serializers.ListField(child=serializers.IntegerField(), help_text="0-based decoder blocks")
    norms = serializers.DictField(child=serializers.FloatField(), help_text="L2 norm by block")
    recommended_alpha = serializers.FloatField(allow_null=True)
    recommended_positions = serializers.ChoiceField(choices=Positions.choices)
    source = serializers.DictField(help_text="Where it was made, and how")  # type: ignore[assignment]
    created_at = serializers.DateTimeField()

    def get_is_shared(self, vector: SteeringVector) -> bool:
        return vector.tenant_id is None


class VectorFileSaid(Input):
    """What a vector's file can't say itself. All of it may be left out for SteerGuard's own safetensors files."""

    name = Slug(required=False, help_text="The skill it is asked for by; the file's own name without it")
    base_model = Text(required=False, max_length=300, help_text="The model that it was made for")
    hidden_size = WholeText(required=False, help_text="The model's hidden size, which the file is held against")
    num_layers = WholeText(required=False, help_text="The model's number of decoder blocks")
    format = serializers.ChoiceField(
        choices=FILE_FORMATS, required=False, help_text="The tool that wrote the file; by its content without it"
    )
    layer = WholeText(required=False, help_text="The 0-based block of a file that has one vector and says no layer")
    index = serializers.ChoiceField(
        choices=CONVENTIONS["index"],
        required=False,
        help_text="llama.cpp's `direction.N`: `measured` (the default) is block N-1, `applied` is block N",
    )
    rows = serializers.ChoiceField(
        choices=CONVENTIONS["rows"],
        required=False,
        help_text="A .npy matrix: `blocks`, row L is block L's; `hidden_states`, row L is block L-1's",
    )
    zero_rows = serializers.ChoiceField(
        choices=CONVENTIONS["zero_rows"],
        required=False,
        help_text="A matrix's rows of zeros: `refuse` (the default) or `skip`",
    )


class VectorUploadSaid(VectorFileSaid):
    """What is said with an upload, in a form or a query."""

    description = _description(default="")
    recommended_alpha = Number(required=False, from_text=True)
    recommended_positions = serializers.ChoiceField(choices=Positions.choices, required=False, default="all")


class VectorForm(VectorUploadSaid):
    """An upload as a form."""

    file = serializers.FileField(help_text=FILE_HELP, allow_empty_file=True)


class VectorPreviewForm(VectorFileSaid):
    """A file to be understood, as a form."""

    file = serializers.FileField(help_text=FILE_HELP, allow_empty_file=True)


class VectorPreviewShape(serializers.Serializer[Any]):
    """How a file was understood."""

    format = serializers.ChoiceField(choices=FILE_FORMATS)
    convention = serializers.CharField(help_text="How the file's numbers became blocks")
    blocks = serializers.ListField(child=serializers.IntegerField(), help_text="0-based decoder blocks")
    hidden_size = serializers.IntegerField()
    digest = serializers.CharField(help_text="SHA-256 of its numbers")
    norm = serializers.ChoiceField(choices=["unit", "raw"])
    norms = serializers.DictField(child=serializers.FloatField(), help_text="L2 norm by block")
    name = serializers.CharField()
    base_model = serializers.CharField()
    warnings = serializers.ListField(child=serializers.CharField())
    is_stored = serializers.BooleanField(help_text="The tenant has a vector of these numbers")


class VectorFileQuery(Input):
    format = serializers.ChoiceField(
        choices=list(EXPORTS), required=False, default="canonical", help_text="repeng and llama.cpp are GGUF"
    )


class VectorChanges(Input):
    """What is left out stays as it is; the numbers never change."""

    name = Slug(required=False)
    description = _description()
    recommended_alpha = Number(required=False, allow_null=True)
    recommended_positions = serializers.ChoiceField(choices=Positions.choices, required=False)


class VectorQuery(ListQuery):
    ordering = Ordering("name", "created_at", "base_model", default="name")
    name = Text(required=False, max_length=63)
    base_model = Text(required=False, max_length=300)
    shared = QueryFlag(required=False, help_text="true: the operator's; false: the tenant's own; both without it")
    lookups: ClassVar = {"name": "name", "base_model": "base_model", "shared": "tenant__isnull"}
