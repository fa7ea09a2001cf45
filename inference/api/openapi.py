"""The inference API's part of the OpenAPI document, by hand: the gateway is no Django view."""

from __future__ import annotations

from typing import Any


def add_inference_paths(result: dict[str, Any], generator: object, request: object, public: bool) -> dict[str, Any]:
    """A drf-spectacular postprocessing hook."""
    return result
