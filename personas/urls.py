"""URLs of the dashboard's pages."""

from django.urls import URLPattern, URLResolver, path
from django.views.generic import RedirectView

from personas import vector_views, views

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="playground"), name="home"),
    path("playground/", views.playground, name="playground"),
    path("vectors/", vector_views.vectors, name="vectors"),
    path("vectors/<slug:tenant>/import/", vector_views.vector_import, name="vector-import"),
    path("vectors/<slug:tenant>/<slug:digest>/", vector_views.vector, name="vector"),
]
