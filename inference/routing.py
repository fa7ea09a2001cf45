"""Websocket addresses, for config/asgi.py."""

from django.urls import URLPattern

websocket_urlpatterns: list[URLPattern] = []
