"""URLs of engines and usage below `/api/v1/`."""

from django.urls import URLPattern, URLResolver, path

from inference.api import engines, usage
from personas.api.urls import TENANT

urlpatterns: list[URLPattern | URLResolver] = [
    path("engines", engines.EnginesView.as_view(), name="api-engines"),
    path("engines/<part:engine>", engines.EngineView.as_view(), name="api-engine"),
    path(f"{TENANT}/usage", usage.UsageView.as_view(), name="api-usage"),
]
