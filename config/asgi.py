"""The one ASGI application: `/v1/…` and `/events/…` to the gateway, `/ws/…` to Channels, everything else to Django.

    uvicorn --http inference.bounded_http:BoundedHttp config.asgi:application

The gateway comes first and raw: Django's middleware costs milliseconds per request, which a relay of
token streams can't afford. It also gets the lifespan events, to open and close its connections.
"""

import gc
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django_app = get_asgi_application()  # loads the apps, so it has to come before the imports below

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402

from inference.body_limit import BodyLimit  # noqa: E402
from inference.gateway.app import application as gateway_app  # noqa: E402
from inference.page_origin import OwnPagesOnly  # noqa: E402
from inference.routing import websocket_urlpatterns as inference_sockets  # noqa: E402
from jobs.routing import websocket_urlpatterns as job_sockets  # noqa: E402
from steerguard.vectors import MAX_VECTOR_BYTES  # noqa: E402

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

GATEWAY_PATHS = ("/v1/", "/events/")

# Nothing else is as large as a vector's file, but an adapter's. The views say what is too large for each of them.
MAX_BODY_BYTES = 2 * MAX_VECTOR_BYTES
ADAPTERS = re.compile(r"/api/v1/tenants/[^/]+/adapters")


def max_body_bytes(path: str) -> int:
    """What a request to Django's `path` may have."""
    if ADAPTERS.fullmatch(path):
        return MAX_BODY_BYTES + settings.MAX_ADAPTER_MIB * 1024 * 1024
    return MAX_BODY_BYTES


limited_django_app = BodyLimit(django_app, max_body_bytes)

# What has been loaded by now lives as long as the process. Looking through it at each full collection would stop
# every stream for a tenth of a second.
gc.collect()
gc.freeze()

websocket_app = OwnPagesOnly(AuthMiddlewareStack(URLRouter([*inference_sockets, *job_sockets])))


async def application(scope: Any, receive: Receive, send: Send) -> None:
    """Hands the connection to the application that answers it."""
    if scope["type"] == "lifespan" or scope.get("path", "").startswith(GATEWAY_PATHS):
        await gateway_app(scope, receive, send)
    elif scope["type"] == "websocket":
        await websocket_app(scope, receive, send)
    else:
        await limited_django_app(scope, receive, send)
