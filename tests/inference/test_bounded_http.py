"""Requests that never end, or are larger than any has to be, at the server's edge. Raw sockets, a real uvicorn."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn

from config.asgi import MAX_BODY_BYTES, max_body_bytes
from inference import bounded_http
from inference.bounded_http import MAX_HEAD_BYTES, MAX_HEADERS, BoundedHttp
from tests.server import start
from tests.waiting import PATIENCE_S

GET = b"GET /echo HTTP/1.1\r\nhost: test\r\n"
POST = b"POST /echo HTTP/1.1\r\nhost: test\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes came."""
    if scope["path"] == "/early":
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        return
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        if not message["more_body"]:
            break
    text = str(length).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


def serve(application: Any) -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(
        application,
        host="127.0.0.1",
        port=0,
        http=BoundedHttp,
        lifespan="off",
        log_level="error",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=600,
    )
    server, thread = start(config)
    yield server.servers[0].sockets[0].getsockname()[:2]
    server.should_exit = True
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    yield from serve(echo)


@pytest.fixture(scope="module")
def product() -> Iterator[tuple[str, int]]:
    from config.asgi import application

    yield from serve(application)


Hurry = Callable[..., None]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Hurry:
    """Makes those of the times short that a test waits for; the others are not to run out on a busy machine."""

    def hurry(*names: str) -> None:
        for name in ("FIRST_BYTE_TIMEOUT_S", "HEAD_TIMEOUT_S", "BODY_TIMEOUT_S"):
            monkeypatch.setattr(bounded_http, name, 0.3 if name in names else 10 * PATIENCE_S)
        monkeypatch.setattr(bounded_http, "LOOK_AGAIN_S", 0.05)

    return hurry


def ask(address: tuple[str, int], *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that the server sends until it hangs up; the parts go out as long as it lets them."""
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
        except OSError:
            pass
        return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionError:
        pass
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def test_ordinary_requests_are_served_on_one_connection(address: tuple[str, int]) -> None:
    small = POST + b"content-length: 5\r\n\r\nhello"
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    last = GET + b"connection: close\r\n\r\n"
    answers = ask(address, small, chunked[:50], chunked[50:], GET + b"\r\n", last, pause_s=0.05)
    assert answers.count(b"HTTP/1.1 200 OK") == 4
    assert answers.split(b"\r\n\r\n")[2].startswith(b"5")


def test_a_large_body_that_comes_is_taken(
    address: tuple[str, int], hurry: Hurry, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry("BODY_TIMEOUT_S")
    monkeypatch.setattr(bounded_http, "MIN_BYTES_PER_S", 100)
    looks: list[str] = []
    look = BoundedHttp._look

    def note(self: BoundedHttp, part: str) -> None:
        looks.append(part)
        look(self, part)

    monkeypatch.setattr(BoundedHttp, "_look", note)
    parts = [b"x" * 65536] * 30
    head = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (30 * 65536)
    # The first part comes with the head: it earns the rest all the time that a busy machine may need.
    answer = ask(address, head + parts[0], *parts[1:], pause_s=0.02)
    assert status_of(answer) == 200
    assert answer.endswith(str(30 * 65536).encode())
    assert "body" in looks


def test_a_connection_that_says_nothing_is_not_kept(address: tuple[str, int], hurry: Hurry) -> None:
    hurry("FIRST_BYTE_TIMEOUT_S")
    assert ask(address) == b""


@pytest.mark.parametrize("sent", [b"GET /ec", GET + b"x-half: "])
def test_headers_that_do_not_come_are_not_waited_for(address: tuple[str, int], sent: bytes, hurry: Hurry) -> None:
    hurry("HEAD_TIMEOUT_S")
    assert status_of(ask(address, sent)) == 408


def test_headers_that_come_by_the_byte_are_not_waited_for(address: tuple[str, int], hurry: Hurry) -> None:
    hurry("HEAD_TIMEOUT_S")
    answer = ask(address, *[b"%c" % byte for byte in GET + b"x: " + b"a" * 400], pause_s=0.01)
    assert status_of(answer) == 408


@pytest.mark.parametrize(
    "framing", [b"content-length: 100000\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n"]
)
def test_a_body_that_stays_away_is_not_waited_for(address: tuple[str, int], framing: bytes, hurry: Hurry) -> None:
    hurry("BODY_TIMEOUT_S")
    assert status_of(ask(address, POST + framing)) == 408


def test_a_body_that_drips_is_not_waited_for(address: tuple[str, int], hurry: Hurry) -> None:
    hurry("BODY_TIMEOUT_S")
    answer = ask(address, POST + b"content-length: 100000\r\n\r\n", *[b"a"] * 400, pause_s=0.01)
    assert status_of(answer) == 408


def test_the_rest_of_a_body_that_was_answered_is_not_taken_forever(address: tuple[str, int], hurry: Hurry) -> None:
    hurry("BODY_TIMEOUT_S")
    head = POST.replace(b"/echo", b"/early") + b"content-length: 100000000\r\n\r\n"
    answer = ask(address, head, *[b"a" * 10_000] * 400, pause_s=0.01)
    assert answer.count(b"HTTP/1.1") == 1
    assert status_of(answer) == 403


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"x-long: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
        GET + b"x-endless: " + b"a" * 4 * MAX_HEAD_BYTES,
        b"GET /echo?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: test\r\n\r\n",
        GET + b"x-one-more: a\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    ],
    ids=["long", "endless", "long line", "many"],
)
def test_heads_have_a_largest_size(address: tuple[str, int], sent: bytes) -> None:
    assert status_of(ask(address, sent)) == 431


@pytest.mark.parametrize("filler", [b"x-trailer: a\r\n" * 10_000, b"x-long: " + b"a" * 300_000])
def test_trailers_have_a_largest_size(address: tuple[str, int], filler: bytes) -> None:
    pieces = [filler[at : at + 4096] for at in range(0, len(filler), 4096)]
    answer = ask(address, POST + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", *pieces, pause_s=0.001)
    assert status_of(answer) == 400


@pytest.mark.parametrize("path", [b"/", b"/login/", b"/api/v1/tenants", b"/static/favicon.svg", b"/nowhere"])
@pytest.mark.parametrize("streamed", [True, False])
def test_bodies_have_a_largest_size_on_every_path(product: tuple[str, int], path: bytes, streamed: bool) -> None:
    head = b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % path
    if streamed:
        part = b"%x\r\n%s\r\n" % (1024 * 1024, b"x" * 1024 * 1024)
        parts = [head + b"transfer-encoding: chunked\r\n\r\n", *[part] * (MAX_BODY_BYTES // (1024 * 1024) + 1)]
    else:
        parts = [head + b"content-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1)]
    answer = ask(product, *parts)
    assert status_of(answer) == 413
    header, _, body = answer.partition(b"\r\n\r\n")
    if path.startswith(b"/api/"):
        assert b"application/problem+json" in header
        problem = json.loads(body)
        assert (problem["type"], problem["status"]) == ("urn:steerguard:problem:content-too-large", 413)
    else:
        assert str(MAX_BODY_BYTES).encode() in body


def test_an_adapter_may_be_larger() -> None:
    assert max_body_bytes("/api/v1/tenants/acme/adapters") > max_body_bytes("/api/v1/tenants/acme/vectors")
    assert max_body_bytes("/api/v1/tenants/acme/adapters/x/file") == MAX_BODY_BYTES
