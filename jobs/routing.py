"""Websocket addresses of this app, for config/asgi.py."""

from django.urls import URLPattern, path

from jobs.consumers import JobConsumer

websocket_urlpatterns: list[URLPattern] = [
    path("ws/jobs/", JobConsumer.as_asgi()),
]
