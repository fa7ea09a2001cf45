"""The OpenAPI document: what is checked in is what the code says, it covers what there is, and its pages show it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from personas.api.openapi import generate

DOCUMENT = Path(settings.BASE_DIR) / "docs" / "openapi.yaml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(DOCUMENT.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


def test_what_is_checked_in_is_what_the_code_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == generate(), "run `make openapi`"


def test_every_route_is_described(document: dict[str, Any]) -> None:
    def routes(resolver: URLResolver, prefix: str = "") -> list[str]:
        found = []
        for pattern in resolver.url_patterns:
            path = prefix + str(pattern.pattern)
            if isinstance(pattern, URLResolver):
                found += routes(pattern, path)
            elif isinstance(pattern, URLPattern) and path.startswith("api/v1/") and "openapi" not in path:
                found.append("/" + re.sub(r"<\w+:(\w+)>", r"{\1}", path))
        return found

    described = {path for path in document["paths"] if path.startswith("/api/v1")}
    assert set(routes(get_resolver())) - {"/api/^v1(?:/|$)"} == described
    assert {path for path in document["paths"] if path.startswith("/v1")} >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/models",
        "/v1/models/{id}",
    }


def test_it_is_openapi_3_1_with_examples(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            for kind, content in described.get("requestBody", {}).get("content", {}).items():
                if kind == "application/json":
                    assert {"example", "examples"} & content.keys(), f"{method} {path} has no example"


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/docs", "/api/redoc"])
def test_pages_come_from_here_and_run_no_foreign_script(path: str, client: Client) -> None:
    answer = client.get(path)
    html = answer.content.decode()
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert policy.endswith("; style-src 'self' 'unsafe-inline'")
    assert policy.count("unsafe") == 1
    assert "http" not in html
    assert not re.search(r"<script(?![^>]*src=)", html)
    for source in re.findall(r'(?:src|href)="([^"]+)"', html):
        assert client.get(source).status_code == 200, source


@pytest.mark.django_db
def test_the_document_is_served(client: Client, document: dict[str, Any]) -> None:
    assert client.get("/api/v1/openapi.json").json() == document
    assert client.get("/api/v1/openapi.yaml").content == DOCUMENT.read_bytes()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/api/v1/nowhere", "/api/v1/tenants/", "/api/v1/%00"])
def test_where_there_is_nothing_the_answer_is_a_problem(path: str, client: Client) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")
