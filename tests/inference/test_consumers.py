"""The playground's websocket, through the whole ASGI application under a real server."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from inference import status_feed
from inference.asks import MAX_FRAME_CHARS
from inference.consumers import MAX_SOCKETS_PER_USER, SIGNED_OUT, TOO_MANY_SOCKETS
from inference.models import Engine
from personas import services
from personas.models import Membership, Persona, Tenant
from personas.playground import MAX_MESSAGE_CHARS, MAX_TOKENS
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway, RegisterEngine, eventually
from tests.inference.gateway.stub_engine import StubEngine, chunk, refuses, streams
from tests.waiting import PATIENCE_S

Message = dict[str, Any]

TIMEOUT_S = PATIENCE_S


class Playground:
    """One open socket, and what a page would do with it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def next(self) -> Message:
        message: Message = json.loads(self.socket.recv(timeout=TIMEOUT_S))
        return message

    def send(self, message: object) -> None:
        self.socket.send(json.dumps(message))

    def ask(self, persona: str = "acme/support", **changes: object) -> None:
        self.send(question(persona, **changes))

    def until(self, type: str, column: str | None = None) -> Message:
        """The next message of that type (and column); those before it are dropped."""
        while True:
            message = self.next()
            if message["type"] == type and column in (None, message.get("column")):
                return message

    def answers(self, *columns: str) -> dict[str, list[Message]]:
        """All messages of each column up to its last."""
        got: dict[str, list[Message]] = {column: [] for column in columns}
        running = set(columns)
        while running:
            message = self.next()
            got[message["column"]].append(message)
            if message["type"] in ("done", "error"):
                running.discard(message["column"])
        return got

    def close_code(self) -> int:
        """What the server closes the socket with."""
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                self.socket.recv(timeout=TIMEOUT_S)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code


Open = Callable[..., Playground]


def question(persona: object = "acme/support", **changes: object) -> Message:
    return {
        "type": "ask",
        "id": "q1",
        "persona": persona,
        "messages": [{"role": "user", "content": "Hi"}],
        "strength": 1.0,
        "columns": ["persona", "base"],
        "max_tokens": 32,
        "seed": 7,
        **changes,
    }


@pytest.fixture
def open_playground(gateway: Gateway) -> Iterator[Open]:
    """Opens sockets: `open_playground(alice_client)`; None is somebody who isn't signed in."""
    with ExitStack() as stack:

        def open(client: Client | None, *, origin: str | None = None) -> Playground:
            cookies = {name: morsel.value for name, morsel in client.cookies.items()} if client else {}
            socket = connect(
                gateway.url.replace("http", "ws", 1) + "/ws/playground/",
                origin=Origin(origin or gateway.url),
                additional_headers={"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())},
                open_timeout=TIMEOUT_S,
                proxy=None,
            )
            return Playground(stack.enter_context(socket))

        yield open


@pytest.fixture
def playground(stub: StubEngine, support: Persona, open_playground: Open, alice_client: Client) -> Playground:
    """alice's playground, past the first message; acme/support is published and an engine is up."""
    playground = open_playground(alice_client)
    assert playground.next()["type"] == "engines"
    return playground


def text_of(messages: list[Message]) -> str:
    return "".join(message["text"] for message in messages if message["type"] == "delta")


def test_says_first_what_the_engines_are_doing(
    register: RegisterEngine, open_playground: Open, alice_client: Client
) -> None:
    register("http://127.0.0.1:1", name="local", status="starting")
    assert open_playground(alice_client).next() == {
        "type": "engines",
        "engines": [{"name": "local", "status": "starting", "detail": ""}],
    }


def test_says_when_an_engine_changes(playground: Playground) -> None:
    Engine.objects.update(status="starting", status_detail="vectors 3/10 in place")
    status_feed.push_engines()
    assert playground.next()["engines"] == [{"name": "stub", "status": "starting", "detail": "vectors 3/10 in place"}]


def test_both_columns_stream_their_answer(playground: Playground, stub: StubEngine) -> None:
    playground.ask()
    answers = playground.answers("persona", "base")
    for column, messages in answers.items():
        assert [message["type"] for message in messages] == ["start", "delta", "delta", "done"], column
        assert text_of(messages) == "Hello!"
        assert {message["id"] for message in messages} == {"q1"}
    assert answers["persona"][0]["revision"] == "acme/support@1"
    assert answers["base"][0]["revision"] is None
    assert answers["persona"][0]["engine"] == "stub"
    done = answers["persona"][-1]
    assert done["usage"]["completion_tokens"] == 4
    assert done["finish_reason"] == "stop"
    assert done["ttft_ms"] > 0


def test_only_the_persona_column_is_steered_and_prompted(playground: Playground, stub: StubEngine) -> None:
    playground.ask(columns=["persona"], strength=0.5)
    playground.answers("persona")
    assert [component["alpha"] for component in stub.steering["blend"]] == [0.75]
    assert stub.last["messages"][0] == {"role": "system", "content": "You work for Acme."}

    playground.ask(columns=["base"], strength=0.5)
    playground.answers("base")
    assert "vllm_xargs" not in stub.last
    assert stub.last["messages"] == [{"role": "user", "content": "Hi"}]


def test_both_columns_are_sampled_alike(
    playground: Playground, stub: StubEngine, acme: Tenant, make_persona: MakePersona
) -> None:
    make_persona(acme, "warm", sampling={"temperature": 0.9, "repetition_penalty": 1.1})
    playground.ask("acme/warm", seed=11, max_tokens=5)
    playground.answers("persona", "base")
    for body in stub.requests:
        assert (body["temperature"], body["seed"], body["max_tokens"]) == (0, 11, 5)
        assert body["repetition_penalty"] == 1.1
    assert len({body["cache_salt"] for body in stub.requests}) == 1


def test_strength_zero_is_unsteered(playground: Playground, stub: StubEngine) -> None:
    playground.ask(columns=["persona"], strength=0)
    playground.answers("persona")
    assert "vllm_xargs" not in stub.last


def test_an_outsider_is_told_what_he_would_be_told_of_nothing(
    stub: StubEngine, support: Persona, globex: Tenant, open_playground: Open, charlie_client: Client
) -> None:
    playground = open_playground(charlie_client)
    playground.ask("acme/support")
    others = playground.until("error", "persona")
    playground.ask("acme/nothing")
    nothing = playground.until("error", "persona")
    assert others["message"].replace("support", "nothing") == nothing["message"]
    assert others["advice"] == nothing["advice"]
    assert stub.requests == []


@pytest.mark.parametrize(
    "name",
    [
        *("acme/draft", "support", "acme", "/", "acme/support@99", "SmolLM2-135M-Instruct"),
        *("\ud800/x", "acme/\udfff", "acme/support\0", "acme\0/support"),
    ],
)
def test_what_is_no_published_persona_of_ones_own_is_unknown(
    name: str, playground: Playground, stub: StubEngine, acme: Tenant
) -> None:
    services.create_persona(tenant=acme, slug="draft", name="Draft", definition={})
    playground.ask(name)
    error = playground.until("error", "base")
    assert error["message"] == f"The model '{name}' does not exist or you do not have access to it."
    assert error["advice"].startswith("Pick another persona")
    assert stub.requests == []


def test_a_membership_that_ended_is_noticed_at_the_next_question(
    playground: Playground, stub: StubEngine, alice: User
) -> None:
    playground.ask()
    playground.answers("persona", "base")
    Membership.objects.filter(user=alice).delete()
    playground.ask()
    assert "does not exist" in playground.until("error")["message"]


def test_a_socket_doesnt_outlive_the_sign_out(playground: Playground, alice_client: Client, stub: StubEngine) -> None:
    alice_client.logout()
    playground.ask()
    assert playground.close_code() == SIGNED_OUT
    assert stub.requests == []


def test_a_socket_doesnt_outlive_a_changed_password(playground: Playground, alice: User, stub: StubEngine) -> None:
    alice.set_password("another")
    alice.save()
    playground.ask()
    assert playground.close_code() == SIGNED_OUT
    assert stub.requests == []


def test_nobody_plays_without_signing_in(open_playground: Open) -> None:
    assert open_playground(None).close_code() == SIGNED_OUT


def test_a_page_of_another_site_is_refused(open_playground: Open, alice_client: Client) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_playground(alice_client, origin="https://evil.example")
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    "origin",
    [
        *("http://127.0.0.1:9999", "http://127.0.0.1", "http://localhost:{port}", "http://127.0.0.1:{port}.evil.com"),
        *("http://127.0.0.1:{port}@evil.com", "http://evil.com/127.0.0.1:{port}", "127.0.0.1:{port}", "null"),
        "file://127.0.0.1:{port}",
    ],
)
def test_a_page_of_another_port_or_no_address_at_all_is_refused(
    origin: str, gateway: Gateway, open_playground: Open, alice_client: Client
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        open_playground(alice_client, origin=origin.format(port=gateway.url.rpartition(":")[2]))
    assert refused.value.response.status_code == 403


def test_stop_aborts_the_generation(playground: Playground, stub: StubEngine) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    playground.ask(columns=["persona"])
    playground.until("delta")
    playground.send({"type": "stop", "id": "q1"})
    assert playground.next() == {"type": "done", "id": "q1", "column": "persona", "stopped": True}
    assert stub.aborted.wait(TIMEOUT_S)


def test_stopping_another_question_does_nothing(playground: Playground, stub: StubEngine) -> None:
    playground.send({"type": "stop", "id": "q0"})
    playground.ask()
    playground.send({"type": "stop", "id": "q0"})
    assert text_of(playground.answers("persona", "base")["persona"]) == "Hello!"


def test_a_new_question_gives_up_the_one_before(playground: Playground, stub: StubEngine) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    playground.ask(columns=["persona"])
    playground.until("delta")
    stub.does = StubEngine().does
    playground.ask(id="q2", columns=["persona"])
    assert playground.next() == {"type": "done", "id": "q1", "column": "persona", "stopped": True}
    assert stub.aborted.wait(TIMEOUT_S)
    answer = playground.answers("persona")["persona"]
    assert text_of(answer) == "Hello!"
    assert {message["id"] for message in answer} == {"q2"}


def test_a_page_that_goes_away_aborts_the_generation(playground: Playground, stub: StubEngine) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    playground.ask()
    playground.until("delta")
    playground.socket.close()
    assert stub.aborted.wait(TIMEOUT_S)


def test_a_refusal_of_the_engine_is_shown_with_what_to_do(playground: Playground, stub: StubEngine) -> None:
    stub.does = refuses(400, "This model's maximum context length is 2048 tokens.")
    playground.ask(columns=["persona"])
    error = playground.next()
    assert error["type"] == "error"
    assert error["column"] == "persona"
    assert "2048" in error["message"]
    assert "Shorten" in error["advice"]


def test_an_answer_that_breaks_off_keeps_its_text_and_says_so(playground: Playground, stub: StubEngine) -> None:
    stub.does = streams(chunk("Hel"), then="cut")
    playground.ask(columns=["persona"])
    messages = playground.answers("persona")["persona"]
    assert text_of(messages) == "Hel"
    assert "broke off" in messages[-1]["message"]


def test_without_an_engine_the_column_says_so(open_playground: Open, alice_client: Client, support: Persona) -> None:
    playground = open_playground(alice_client)
    playground.ask(columns=["persona"])
    assert playground.until("error", "persona")["advice"].startswith("The bar at the top")


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("{", "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        ("[]", "JSON object"),
        ("{}", "'type'"),
        (b"\x00\x01", "binary"),
        (" " * (MAX_FRAME_CHARS + 1), "longer than"),
        (json.dumps({"type": "stop"}), "'id'"),
        (json.dumps(question(strength=2.1)), "'strength'"),
        (json.dumps(question(strength=float("nan"))), "'strength'"),
        (json.dumps(question(strength="1")), "'strength'"),
        (json.dumps(question(strength=10**400)), "'strength'"),
        (json.dumps(question(strength=-(10**400))), "'strength'"),
        (json.dumps(question(columns=[])), "'columns'"),
        (json.dumps(question(columns=["persona", "persona"])), "'columns'"),
        (json.dumps(question(columns=[{}])), "'columns'"),
        (json.dumps(question(max_tokens=MAX_TOKENS + 1)), "'max_tokens'"),
        (json.dumps(question(max_tokens=True)), "'max_tokens'"),
        (json.dumps(question(seed=-1)), "'seed'"),
        (json.dumps(question(id="")), "'id'"),
        (json.dumps(question(persona=3)), "'persona'"),
        (json.dumps(question(messages=[])), "'messages'"),
        (json.dumps(question(messages=["Hi"])), "'messages[0]'"),
        (json.dumps(question(messages=[{"role": "tool", "content": "Hi"}])), "'messages[0]'"),
        (json.dumps(question(messages=[{"role": "user", "content": " "}])), "'messages[0]'"),
        (json.dumps(question(messages=[{"role": "user", "content": "Hi\ud800"}])), "'messages[0]'"),
        (json.dumps(question(messages=[{"role": "user", "content": "Hi\0"}])), "'messages[0]'"),
        (json.dumps(question(messages=[{"role": "\ud800", "content": "Hi"}])), "'messages[0]'"),
        (json.dumps(question(id="\udfff")), "'id'"),
        (json.dumps(question(id="a\0b")), "'id'"),
        (json.dumps({"type": "stop", "id": "\ud800"}), "'id'"),
        (json.dumps({"type": "\ud800"}), "'type'"),
        (json.dumps(question(columns=["\ud800"])), "'columns'"),
        (
            json.dumps(question(messages=[{"role": "user", "content": "x" * (MAX_MESSAGE_CHARS + 1)}])),
            "longer than",
        ),
    ],
)
def test_nonsense_is_answered_and_the_socket_lives_on(
    frame: str | bytes, expected: str, playground: Playground, stub: StubEngine
) -> None:
    playground.socket.send(frame)
    error = playground.next()
    assert error["type"] == "error"
    assert expected in error["message"]
    assert "column" not in error
    playground.ask()
    assert text_of(playground.answers("persona", "base")["persona"]) == "Hello!"


def test_a_person_has_a_bounded_number_of_sockets(
    stub: StubEngine, open_playground: Open, alice_client: Client, charlie_client: Client
) -> None:
    mine = [open_playground(alice_client) for _ in range(MAX_SOCKETS_PER_USER)]
    for playground in mine:
        playground.next()
    assert open_playground(alice_client).close_code() == TOO_MANY_SOCKETS
    assert open_playground(charlie_client).next()["type"] == "engines"

    def one_more_is_let_in() -> bool:
        try:
            return bool(open_playground(alice_client).next()["type"] == "engines")
        except ConnectionClosed:
            return False

    mine[0].socket.close()
    # The goodbye is answered before the server has forgotten the socket.
    eventually(one_more_is_let_in)


def test_a_persona_published_a_moment_ago_answers(
    playground: Playground, stub: StubEngine, acme: Tenant, make_persona: MakePersona
) -> None:
    make_persona(acme, "new")
    playground.ask("acme/new", columns=["persona"])
    assert playground.answers("persona")["persona"][0]["revision"] == "acme/new@1"


def test_a_page_that_goes_away_while_text_streams_is_no_error(
    playground: Playground, stub: StubEngine, caplog: pytest.LogCaptureFixture
) -> None:
    stub.does = streams(*[chunk("word ")] * 3000, then="hangs")
    playground.ask()
    playground.until("delta")
    playground.socket.socket.shutdown(2)
    assert stub.aborted.wait(TIMEOUT_S)
    # The engine's stand-in may complain, and so may what earlier tests have left to the garbage collector.
    ours = [record for record in caplog.records if not record.name.startswith(("aiohttp", "asyncio"))]
    assert [record.getMessage() for record in ours if record.levelname == "ERROR"] == []
