"""The API's own documentation, and what answers where there is nothing."""

from django.urls import URLPattern, URLResolver, path, re_path

from personas.api import docs
from personas.api.problems import no_such_path

urlpatterns: list[URLPattern | URLResolver] = [
    path("v1/openapi.yaml", docs.openapi_yaml, name="api-openapi-yaml"),
    path("v1/openapi.json", docs.openapi_json, name="api-openapi-json"),
    path("docs", docs.swagger, name="api-docs"),
    path("redoc", docs.redoc, name="api-redoc"),
    re_path(r"^v1(?:/|$)", no_such_path),
]
