"""The OpenAPI document, as it is checked in, and two pages that show it. None of it says anything about a tenant."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from personas.middleware import CONTENT_SECURITY_POLICY

# Swagger UI and Redoc write <style> elements and style attributes. Scripts stay as everywhere: from /static/ only.
DOCS_SECURITY_POLICY = f"{CONTENT_SECURITY_POLICY}; style-src 'self' 'unsafe-inline'"


@cache
def document() -> str:
    """docs/openapi.yaml; a test makes sure that it is what the code says."""
    return (Path(settings.BASE_DIR) / "docs" / "openapi.yaml").read_text(encoding="utf-8")


@cache
def _as_json() -> bytes:
    data: Any = yaml.load(document(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return json.dumps(data, ensure_ascii=False).encode()


@require_safe
def openapi_yaml(request: HttpRequest) -> HttpResponse:
    """The document as YAML."""
    return HttpResponse(document(), content_type="application/yaml; charset=utf-8")


@require_safe
def openapi_json(request: HttpRequest) -> HttpResponse:
    """The document as JSON."""
    return HttpResponse(_as_json(), content_type="application/json")


@require_safe
def swagger(request: HttpRequest) -> HttpResponse:
    """Swagger UI, which can try requests with the reader's session."""
    return _page(request, "personas/api_docs.html")


@require_safe
def redoc(request: HttpRequest) -> HttpResponse:
    """Redoc, to read."""
    return _page(request, "personas/api_redoc.html")


def _page(request: HttpRequest, template: str) -> HttpResponse:
    response = render(request, template)
    response.headers["Content-Security-Policy"] = DOCS_SECURITY_POLICY
    return response
