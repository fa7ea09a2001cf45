"""Websocket addresses, for config/asgi.py."""

from django.urls import URLPattern, path

from inference.consumers import PlaygroundConsumer
from personas.playground import SOCKET_PATH

websocket_urlpatterns: list[URLPattern] = [
    path(SOCKET_PATH.removeprefix("/"), PlaygroundConsumer.as_asgi()),
]
