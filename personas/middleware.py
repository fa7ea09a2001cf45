"""What every page gets: headers that keep it private and scripts out, and one log line. And the files it needs."""

import contextlib
import time
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_cache_control
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile

log = structlog.get_logger("web")

GetResponse = Callable[[HttpRequest], HttpResponse]

# Scripts and styles come from /static/ only: an inline <script>, an onclick="…" or a style="…" in a template
# does nothing. (`element.style` set from a script is allowed.) 'self' covers the websocket too.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)


class PageHeadersMiddleware:
    """Pages are for one person: no shared cache keeps them, and Back after a log-out shows nothing."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        if not response.has_header("Cache-Control"):
            patch_cache_control(response, private=True, no_store=True)
        return response


class RequestLogMiddleware:
    """One line per request: never the query string, a header or a body, any of which may hold a secret."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        started = time.perf_counter()
        response = self.get_response(request)
        if not request.path.startswith(("/static/", "/healthz")):
            log.info(
                "request",
                method=request.method,
                path=request.path,
                status=response.status_code,
                ms=round((time.perf_counter() - started) * 1000),
            )
        return response


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise, answering with whole files.

    Its own answers are file iterators, which Django reads to the end under ASGI anyway, in a thread, and warns of.
    """

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """The file, a part of it, or that it has not changed, as WhiteNoise decides from the request's headers."""
        answer = static_file.get_response(request.method, request.META)
        response = HttpResponse(status=int(answer.status))
        if answer.file is not None:
            with contextlib.closing(answer.file) as file:
                response.content = file.read()
        del response.headers["Content-Type"]
        for name, value in answer.headers:
            response.headers[name] = value
        if response.content:
            # WhiteNoise says the size that the file had at the start; a checkout may have been updated since.
            response.headers["Content-Length"] = str(len(response.content))
        return response
