"""A job's events over a websocket, under a real server."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from inference.consumers import SIGNED_OUT, TOO_MANY_SOCKETS
from jobs import consumers, services
from jobs.models import Job
from personas.models import Membership
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import StubEngine, chunk, streams
from tests.jobs.conftest import Work
from tests.jobs.test_jobs import make, parse
from tests.waiting import PATIENCE_S

Message = dict[str, Any]
Open = Callable[..., ClientConnection]


@pytest.fixture
def open_socket(gateway: Gateway) -> Iterator[Open]:
    """Opens sockets: `open_socket(alice_client)`; None is somebody who isn't signed in."""
    with ExitStack() as stack:

        def open(client: Client | None, *, origin: str | None = None) -> ClientConnection:
            cookies = {name: morsel.value for name, morsel in client.cookies.items()} if client else {}
            socket = connect(
                gateway.url.replace("http", "ws", 1) + "/ws/jobs/",
                origin=Origin(origin or gateway.url),
                additional_headers={"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())},
                open_timeout=PATIENCE_S,
                proxy=None,
            )
            return stack.enter_context(socket)

        yield open


def send(socket: ClientConnection, type: str, job: object, **more: object) -> None:
    socket.send(json.dumps({"type": type, "job": job, **more}))


def receive(socket: ClientConnection) -> Message:
    message: Message = json.loads(socket.recv(timeout=PATIENCE_S))
    return message


def until_end(socket: ClientConnection) -> list[Message]:
    told = [receive(socket)]
    while told[-1]["type"] not in (*Job.ENDED, "error"):
        told.append(receive(socket))
    return told


def close_code(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            socket.recv(timeout=PATIENCE_S)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def test_a_page_is_told_what_the_stream_tells_from_any_position(
    program: httpx.Client, work: Work, open_socket: Open, alice_client: Client
) -> None:
    job = make(program)["id"]
    socket = open_socket(alice_client)
    send(socket, "watch", job)
    assert receive(socket)["type"] == "queued"
    work().join(PATIENCE_S)
    until_end(socket)
    told = [(id, kind, data) for id, kind, data in parse(program.get(f"/events/{job}").text)]
    for position in range(len(told)):
        send(socket, "watch", job, **({"after": told[position - 1][0]} if position else {}))
        seen = until_end(socket)
        assert [(one["id"], one["type"], one["data"]) for one in seen] == told[position:]
        assert {one["job"] for one in seen} == {job}


def test_several_jobs_are_watched_and_left(
    program: httpx.Client, stub: StubEngine, work: Work, open_socket: Open, alice_client: Client
) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    jobs = [make(program)["id"] for _ in range(2)]
    socket = open_socket(alice_client)
    for job in jobs:
        send(socket, "watch", job)
    assert {receive(socket)["job"] for _ in jobs} == set(jobs)
    send(socket, "leave", jobs[0])
    send(socket, "leave", "job_that_nobody_watches")
    work()
    seen: list[Message] = []
    while not seen or seen[-1]["type"] != "delta":
        seen.append(receive(socket))
    program.delete(f"/v1/jobs/{jobs[1]}")
    seen += until_end(socket)
    assert {one["job"] for one in seen} == {jobs[1]} and seen[-1]["type"] == "cancelled"


def test_acmes_job_is_to_charlie_what_nobodys_is(
    program: httpx.Client, open_socket: Open, charlie_client: Client
) -> None:
    socket, job = open_socket(charlie_client), make(program)["id"]
    told = []
    for name in (job, "job_" + "0" * 32, "x\0y"):
        send(socket, "watch", name)
        told.append(json.dumps(receive(socket)).replace(json.dumps(name)[1:-1], "…"))
    assert told[0] == told[1] == told[2] and "not_found" in told[0]


def test_a_membership_that_ends_and_a_sign_out_end_it(
    program: httpx.Client, open_socket: Open, alice_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "RECHECK_S", 0.05)
    job = make(program)["id"]
    socket = open_socket(alice_client)
    send(socket, "watch", job)
    assert receive(socket)["type"] == "queued"
    membership = Membership.objects.get(user__username="alice")
    membership.delete()
    assert receive(socket)["data"]["error"]["code"] == "not_found"
    membership.save()
    send(socket, "watch", job)
    assert receive(socket)["type"] == "queued"
    alice_client.logout()
    assert close_code(socket) == SIGNED_OUT


def test_who_is_not_signed_in_or_comes_from_another_page_is_refused(open_socket: Open, alice_client: Client) -> None:
    assert close_code(open_socket(None)) == SIGNED_OUT
    with pytest.raises(InvalidStatus):
        open_socket(alice_client, origin="https://evil.example")


def test_sockets_and_what_they_watch_are_bounded(
    program: httpx.Client, open_socket: Open, alice_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MAX_SOCKETS_PER_USER", 1)
    monkeypatch.setattr(consumers, "MAX_JOBS_PER_SOCKET", 1)
    socket = open_socket(alice_client)
    jobs = [make(program)["id"] for _ in range(2)]
    send(socket, "watch", jobs[0])
    assert receive(socket)["type"] == "queued"
    send(socket, "watch", jobs[1])
    assert receive(socket)["data"]["error"]["code"] == "too_many_streams"
    assert close_code(open_socket(alice_client)) == TOO_MANY_SOCKETS
    socket.close()
    eventually(lambda: not consumers._open_sockets.total())


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", '{"type": "watch"}', '{"type": "ask", "job": "x"}', '{"type": "watch", "job": 1}', "[" * 999,
     '{"type": "watch", "job": "x", "after": 5}', '{"type": "watch", "job": "x", "after": "x"}', " " * 2000],
)  # fmt: skip
def test_a_message_that_is_none_is_refused(open_socket: Open, alice_client: Client, text: str) -> None:
    socket = open_socket(alice_client)
    socket.send(text)
    told = receive(socket)
    assert (told["type"], told["data"]["error"]["type"]) == ("error", "invalid_request_error")


def test_the_last_event_of_a_job_that_ended_before_is_told(
    program: httpx.Client, open_socket: Open, alice_client: Client
) -> None:
    job = make(program)["id"]
    services.cancel(Job.objects.get(public_id=job))
    socket = open_socket(alice_client)
    send(socket, "watch", job)
    assert [one["type"] for one in until_end(socket)] == ["queued", "cancelled"]
