"""URLs of the dashboard's pages."""

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from personas import views

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="playground"), name="home"),
    path("playground/", views.playground, name="playground"),
]
