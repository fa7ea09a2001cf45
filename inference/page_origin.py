"""Which pages may open a websocket: a browser sends a person's cookies along from any page, and asks nobody.

The page has to come from the very host and port that it connects to, as the Host header has them (a proxy in front
must pass that on), or from one of CSRF_TRUSTED_ORIGINS. Channels' own validator lets every port of a host through.
"""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.core.handlers.asgi import ASGIRequest
from django.utils.http import is_same_domain

DEFAULT_PORTS = {"http": 80, "https": 443}


class OwnPagesOnly:
    """Answers a handshake from any other page with 403."""

    def __init__(self, application: Any) -> None:
        self.application = application

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        allowed = len(origins) == 1 and is_allowed(origins[0].decode("latin-1"), host_of(scope))
        if allowed:
            await self.application(scope, receive, send)
        else:
            await send({"type": "websocket.close"})  # before an accept: ASGI servers answer 403


def is_allowed(origin: str, host: str | None) -> bool:
    """Whether a page of `origin` (`https://name:port`) may connect to `host` (`name:port`; None: none of ours)."""
    scheme, separator, address = origin.lower().partition("://")
    page = _host_and_port(address, scheme)
    if host is None or not separator or page is None:
        return False
    return page == _host_and_port(host.lower(), scheme) or any(
        _matches(scheme, page, trusted.lower()) for trusted in settings.CSRF_TRUSTED_ORIGINS
    )


def _matches(scheme: str, page: tuple[str, int], trusted: str) -> bool:
    """`trusted` as Django has it: `https://name`, or `https://*.name` for that name and all below it."""
    trusted_scheme, _, address = trusted.partition("://")
    own = _host_and_port(address.removeprefix("*"), trusted_scheme)
    if own is None or trusted_scheme != scheme or own[1] != page[1]:
        return False
    return page[0] == own[0] or (own[0].startswith(".") and is_same_domain(page[0], own[0]))


def _host_and_port(address: str, scheme: str) -> tuple[str, int] | None:
    """None for what is no bare host with an optional port, or of a page that is no web page."""
    try:
        parts = urlsplit(f"//{address}")
        default_port = DEFAULT_PORTS[scheme]
        port = default_port if parts.port is None else parts.port
    except (KeyError, ValueError):
        return None
    if parts.netloc != address or "@" in address or not parts.hostname:
        return None
    return parts.hostname, port


def host_of(scope: Any) -> str | None:
    """The host as pages see it, by the rules of ALLOWED_HOSTS; None when they would be refused."""
    try:
        return ASGIRequest({**scope, "method": "GET"}, io.BytesIO()).get_host()
    except DisallowedHost:
        return None
