"""Which pages may open a websocket, behind proxies too; what a server answers to the others is in test_consumers."""

from typing import Any

import pytest
from pytest_django import Settings

from inference.page_origin import OwnPagesOnly


async def is_let_in(host: str | None, *origins: str) -> bool:
    """Whether a handshake with these headers reaches the application."""
    reached = False

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal reached
        reached = True

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    sent: list[dict[str, object]] = []
    headers = [(b"origin", origin.encode()) for origin in origins]
    if host is not None:
        headers.append((b"host", host.encode()))
    scope = {"type": "websocket", "path": "/ws/playground/", "query_string": b"", "headers": headers}
    await OwnPagesOnly(application)(scope, receive, send)
    assert reached or sent == [{"type": "websocket.close"}]
    return reached


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("play.example.com", "https://play.example.com"),
        ("play.example.com:443", "https://play.example.com"),
        ("play.example.com", "http://play.example.com:80"),
        ("play.example.com:8443", "https://play.example.com:8443"),
    ],
)
async def test_the_page_that_was_served_from_there_may_connect(host: str, origin: str, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]", "play.example.com"]
    assert await is_let_in(host, origin)


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:9999"),
        ("127.0.0.1:8400", "http://127.0.0.1:8400.evil.com"),
        ("play.example.com", "https://play.example.com:8443"),
        ("play.example.com", "https://play.example.com.evil.com"),
        ("play.example.com", "https://sub.play.example.com"),
        ("play.example.com", "https://play.example.com/"),
        ("play.example.com", "https://play.example.com\t"),
        ("play.example.com", "https://[play.example.com"),
        ("play.example.com", "https://"),
        ("play.example.com", ""),
        ("evil.com", "https://evil.com"),
    ],
)
async def test_no_other_page_may(host: str, origin: str, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1", "play.example.com"]
    assert not await is_let_in(host, origin)


async def test_without_one_host_and_one_origin_nobody_may(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["play.example.com"]
    assert not await is_let_in("play.example.com")
    assert not await is_let_in("play.example.com", "https://play.example.com", "https://play.example.com")
    assert not await is_let_in(None, "https://play.example.com")


async def test_trusted_origins_may_connect_as_they_may_send_forms(settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["web"]
    settings.CSRF_TRUSTED_ORIGINS = ["https://play.example.com", "https://*.example.org:8443"]
    assert await is_let_in("web:8000", "https://play.example.com")
    assert await is_let_in("web:8000", "https://a.example.org:8443")
    assert not await is_let_in("web:8000", "http://play.example.com")
    assert not await is_let_in("web:8000", "https://play.example.com:8443")
    assert not await is_let_in("web:8000", "https://a.example.org")
    assert not await is_let_in("web:8000", "https://example.org.evil.com:8443")
    assert not await is_let_in("other:8000", "https://play.example.com"), "the host is checked all the same"
