"""URLs of the dashboard's pages."""

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(url="/playground/"), name="home"),
]
