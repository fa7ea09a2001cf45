"""The one ASGI application: `/v1/…` to the gateway, `/ws/…` to Channels, everything else to Django.

The gateway comes first and raw: Django's middleware costs milliseconds per request, which a relay of
token streams can't afford. It also gets the lifespan events, to open and close its connections.
"""

import os

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django_app = get_asgi_application()  # loads the apps, so it has to come before the imports below

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from inference.gateway import app as gateway_app  # noqa: E402
from inference.routing import websocket_urlpatterns  # noqa: E402

websocket_app = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))


def choose_app(scope: Scope) -> ASGI3Application:
    """The application that answers this connection."""
    if scope["type"] == "lifespan":
        return gateway_app
    if scope["type"] == "websocket":
        return websocket_app
    if scope["path"] == "/v1" or scope["path"].startswith("/v1/"):
        return gateway_app
    return django_app


async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    await choose_app(scope)(scope, receive, send)
