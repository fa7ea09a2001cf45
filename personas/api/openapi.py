"""The OpenAPI document: what drf-spectacular makes of the views, and what it can't know."""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from rest_framework.serializers import Serializer

from personas.api.definition_schema import DEFINITION
from personas.api.fields import Input

HEADER = "# Written by `make openapi`.\n"


def generate() -> str:
    """docs/openapi.yaml, as the code says it. Raises RuntimeError for a view that isn't described in full."""
    from drf_spectacular.drainage import GENERATOR_STATS
    from drf_spectacular.generators import SchemaGenerator
    from drf_spectacular.renderers import OpenApiYamlRenderer

    GENERATOR_STATS.reset()
    schema = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    if GENERATOR_STATS:
        raise RuntimeError("drf-spectacular warned of a view: see above")
    text: bytes = OpenApiYamlRenderer().render(schema, renderer_context={})
    return HEADER + text.decode()


class ApiSchema(AutoSchema):
    """Components are named after things: TenantShape is `Tenant`."""

    def _get_serializer_name(self, serializer: Serializer[Any], direction: Any, *args: Any, **kwargs: Any) -> str:
        name: str = super()._get_serializer_name(serializer, direction, *args, **kwargs)
        return name.replace("Shape", "").removesuffix("Request")


def finish_schema(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """A drf-spectacular postprocessing hook: bodies take no unknown fields, and pages have no unknown ones."""
    schemas = result.get("components", {}).get("schemas", {})
    for name in {kind.__name__ for kind in _subclasses(Input)} & schemas.keys():
        schemas[name]["additionalProperties"] = False
    schemas["Definition"] = DEFINITION
    result["components"]["schemas"] = dict(sorted(schemas.items()))
    return result


def _subclasses(kind: type[Any]) -> set[type[Any]]:
    children: list[type[Any]] = kind.__subclasses__()
    return {found for child in children for found in (child, *_subclasses(child))}
