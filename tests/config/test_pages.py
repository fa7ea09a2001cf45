"""What every page has in common: who may see it, and the headers it comes with."""

import asyncio
import logging

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from config.asgi import application
from inference.gateway.runtime import close_runtime

pytestmark = pytest.mark.django_db


def test_nobody_gets_past_the_log_in_without_signing_in(client: Client) -> None:
    response = client.get("/playground/")
    assert response.status_code == 302
    assert response.headers["Location"].startswith("/login/")


def test_a_person_signs_in_and_out(client: Client, alice: User) -> None:
    assert client.post("/login/", {"username": "alice", "password": "wrong"}).status_code == 200
    assert "_auth_user_id" not in client.session
    assert client.post("/login/", {"username": "alice", "password": "alice"}).status_code == 302
    assert client.session["_auth_user_id"] == str(alice.pk)
    client.post("/logout/")
    assert "_auth_user_id" not in client.session


def test_signing_in_needs_a_csrf_token(alice: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    response = strict.post("/login/", {"username": "alice", "password": "alice"})
    assert response.status_code == 403


def test_a_signed_in_person_is_not_sent_elsewhere(client: Client, alice: User) -> None:
    response = client.post("/login/?next=https://evil.example/", {"username": "alice", "password": "alice"})
    assert response.headers["Location"] == "/"


def test_pages_are_private_and_run_no_foreign_script(alice_client: Client) -> None:
    headers = alice_client.get("/playground/").headers
    assert headers["Cache-Control"] == "private, no-store"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


def test_the_session_cookie_is_out_of_scripts_reach(client: Client, alice: User) -> None:
    response = client.post("/login/", {"username": "alice", "password": "alice"})
    cookie = response.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_a_foreign_host_name_is_refused(client: Client) -> None:
    assert client.get("/login/", headers={"host": "evil.example"}).status_code == 400


def test_the_log_line_holds_no_query_string(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="web"):
        client.get("/login/?next=/secret-in-a-query/")
    (record,) = [record for record in caplog.records if record.name == "web"]
    assert "/login/" in str(record.msg)
    assert "secret-in-a-query" not in str(record.msg)


def test_health_says_that_pages_can_be_served(client: Client) -> None:
    response = client.get("/healthz")
    assert response.status_code == 200
    assert response.json() == {"ok": True}


async def test_static_files_are_served_whole_and_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    answers = await ask_over_asgi("/static/css/playground.css")
    assert answers[0]["status"] == 200
    assert dict(answers[0]["headers"])[b"Content-Type"].startswith(b"text/css")  # type: ignore[call-overload]
    body = b"".join(answer["body"] for answer in answers[1:])  # type: ignore[misc]
    assert body == (settings.BASE_DIR / "static/css/playground.css").read_bytes()
    assert not [warned for warned in recwarn if "synchronous iterators" in str(warned.message)]


def test_a_static_file_that_is_known_is_not_sent_again(client: Client) -> None:
    first = client.get("/static/css/playground.css")
    again = client.get("/static/css/playground.css", headers={"if-none-match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    part = client.get("/static/css/playground.css", headers={"range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, first.content[:10])


@pytest.mark.django_db(transaction=True)
async def test_pages_and_the_api_are_served_by_one_application(transactional_db: None) -> None:
    assert (await ask_over_asgi("/healthz"))[0]["status"] == 200
    try:
        answers = await ask_over_asgi("/v1/models")
    finally:
        await close_runtime()
    assert answers[0]["status"] == 401, "the gateway answers below /v1/, not Django"


async def ask_over_asgi(path: str) -> list[dict[str, object]]:
    sent: list[dict[str, object]] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }

    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, object]:
        for message in asked:
            return message
        return await asyncio.Future()  # the client stays until it has its answer

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent
