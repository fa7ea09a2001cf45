"""The gateway's HTTP to engines, against a server that sends exactly the bytes that a test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gateway import connections
from inference.gateway.connections import Answer, BrokenOff, Connections, NotConnected, Silent
from tests.waiting import PATIENCE_S

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Dose: 0.5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;extension=1\r\nlo\r\n0\r\nX-Dose: 9\r\n\r\n"
)


@dataclass
class Peer:
    """What the server has seen. `does` is called with a connection's writer for each request that came."""

    does: Callable[[asyncio.StreamWriter], Awaitable[None]]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                self.arrived.set()
                await self.does(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


def sends(*parts: bytes, then_close: bool = False) -> Callable[[asyncio.StreamWriter], Awaitable[None]]:
    async def send(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        if then_close:
            writer.close()

    return send


@asynccontextmanager
async def peer(does: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[Peer]:
    seen = Peer(does)
    server = await asyncio.start_server(seen.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    seen.url = f"http://{host}:{port}/base"
    try:
        yield seen
    finally:
        server.close()


@asynccontextmanager
async def pool(
    connect_timeout_s: float = PATIENCE_S, silence_timeout_s: float = PATIENCE_S, idle_s: float = PATIENCE_S
) -> AsyncIterator[Connections]:
    opened = Connections(connect_timeout_s=connect_timeout_s, silence_timeout_s=silence_timeout_s, idle_s=idle_s)
    try:
        yield opened
    finally:
        await opened.close()


async def post(
    opened: Connections, to: Peer, headers: Mapping[str, str] | None = None, *, reuse: bool = True
) -> Answer:
    return await opened.post(to.url, "/v1/x", headers or {}, b"{}", reuse=reuse)


async def read(answer: Answer) -> bytes:
    parts = []
    while part := await answer.read_any():
        parts.append(part)
    return b"".join(parts)


async def test_a_request_is_written_as_http_has_it() -> None:
    async with peer(sends(WHOLE)) as engine, pool() as opened:
        await read(await post(opened, engine, {"x-request-id": "req_1"}))
    authority = engine.url.removeprefix("http://").removesuffix("/base")
    lines = ["POST /base/v1/x HTTP/1.1", f"host: {authority}", "x-request-id: req_1", "content-length: 2", "", "{}"]
    assert engine.requests == ["\r\n".join(lines).encode()]


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\0b"])
async def test_a_header_can_not_smuggle_another_one_in(value: str) -> None:
    async with peer(sends(WHOLE)) as engine, pool() as opened:
        with pytest.raises(ValueError, match="control character"):
            await post(opened, engine, {"authorization": value})
    assert engine.requests == []


@pytest.mark.parametrize("url", ["", "ftp://engine", "engine:8000", "http://", "http://engine:port"])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    async with pool() as opened:
        with pytest.raises(ValueError):
            await opened.post(url, "/v1/x", {}, b"{}")


@pytest.mark.parametrize("sent", [WHOLE, CHUNKED])
async def test_connections_are_used_again(sent: bytes) -> None:
    async with peer(sends(sent)) as engine, pool() as opened:
        for _ in range(3):
            answer = await post(opened, engine)
            assert (answer.status, await read(answer), await answer.read_any()) == (200, b"hello", b"")
            answer.close()
    assert (engine.connections, len(engine.requests)) == (1, 3)


async def test_a_caller_may_want_a_new_one() -> None:
    async with peer(sends(WHOLE)) as engine, pool() as opened:
        await read(await post(opened, engine))
        await read(await post(opened, engine, reuse=False))
    assert engine.connections == 2


async def test_answers_that_run_at_once_have_one_each() -> None:
    async with peer(sends(WHOLE[:-2])) as engine, pool() as opened:
        first, second = await asyncio.gather(post(opened, engine), post(opened, engine))
        first.close()
        second.close()
    assert engine.connections == 2


@given(cuts=st.lists(st.integers(0, len(CHUNKED)), max_size=8), sent=st.sampled_from([WHOLE, CHUNKED]))
@settings(max_examples=50, deadline=None)
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(cuts: list[int], sent: bytes) -> None:
    """Through the protocol alone: a socket would put the pieces together again."""

    async def receive() -> tuple[int, dict[str, str], bytes]:
        opened = Connections(connect_timeout_s=1, silence_timeout_s=PATIENCE_S, idle_s=PATIENCE_S)
        connection = connections._Connection(opened, connections.parse_origin("http://engine"))
        connection.connection_made(_Transport())
        answer = connection.ask(b"")
        edges = [0, *sorted(cuts), len(sent)]
        for begin, end in pairwise(edges):
            if part := sent[begin:end]:
                connection.data_received(part)
        await answer.begin()
        body = await read(answer)
        await opened.close()
        return answer.status, answer.headers, body

    status, headers, body = asyncio.run(receive())
    assert (status, body) == (200, b"hello")
    # A trailer is no header.
    assert headers.get("x-dose") == ("0.5" if sent is WHOLE else None)


class _Transport(asyncio.Transport):
    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


async def test_an_answer_may_end_with_its_connection() -> None:
    async with peer(sends(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", then_close=True)) as engine, pool() as opened:
        assert await read(await post(opened, engine)) == b"hello"
        assert await read(await post(opened, engine)) == b"hello"
    assert engine.connections == 2


async def test_an_interim_answer_is_none() -> None:
    interim = b"HTTP/1.1 100 Continue\r\nx-dose: 7\r\n\r\n"
    async with peer(sends(interim, interim, WHOLE)) as engine, pool() as opened:
        answer = await post(opened, engine)
        assert (answer.status, answer.headers["x-dose"], await read(answer)) == (200, "0.5", b"hello")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_answer_is_a_broken_connection(sent: bytes) -> None:
    async with peer(sends(sent, then_close=True)) as engine, pool() as opened:
        with pytest.raises(BrokenOff):
            await post(opened, engine)


async def test_a_head_without_end_is_not_kept() -> None:
    padding = b"x-padding: %s\r\n" % (b"a" * 1000) * 100
    async with peer(sends(b"HTTP/1.1 200 OK\r\n" + padding)) as engine, pool() as opened:
        with pytest.raises(BrokenOff, match="longer than"):
            await post(opened, engine)


@pytest.mark.parametrize("sent", [WHOLE[:-2], CHUNKED[: CHUNKED.index(b"lo\r\n")]])
async def test_what_came_before_a_break_is_read_before_it_is_told(sent: bytes) -> None:
    async with peer(sends(sent, then_close=True)) as engine, pool() as opened:
        answer = await post(opened, engine)
        with pytest.raises(BrokenOff):
            await read(answer)
        parts = b""
        answer = await post(opened, engine, reuse=False)
        try:
            while True:
                parts += await answer.read_any()
        except BrokenOff:
            assert parts == b"hel"


async def test_a_second_answer_to_one_request_is_dropped_with_its_connection() -> None:
    async with peer(sends(WHOLE + WHOLE)) as engine, pool() as opened:
        for _ in range(2):
            assert await read(await post(opened, engine)) == b"hello"
    assert engine.connections == 2


async def test_what_nobody_asked_for_ends_a_kept_connection() -> None:
    async with peer(sends(WHOLE, b"")) as engine, pool() as opened:
        writers: list[asyncio.StreamWriter] = []

        async def remember(writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await sends(WHOLE)(writer)

        engine.does = remember
        await read(await post(opened, engine))
        writers[0].write(WHOLE.replace(b"hello", b"other"))
        async with asyncio.timeout(PATIENCE_S):
            await engine.left.wait()
        assert await read(await post(opened, engine)) == b"hello"


@pytest.mark.parametrize("header", [b"connection: close", b"Connection: Close"])
async def test_a_connection_that_is_to_close_is_not_kept(header: bytes) -> None:
    sent = WHOLE.replace(b"X-Dose: 0.5", header)
    async with peer(sends(sent)) as engine, pool() as opened:
        for _ in range(2):
            assert await read(await post(opened, engine)) == b"hello"
        async with asyncio.timeout(PATIENCE_S):
            await engine.left.wait()
    assert engine.connections == 2


async def test_a_connection_is_kept_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_EVERY_S", 0.01)
    async with peer(sends(WHOLE)) as engine, pool(idle_s=0.01) as opened:
        await read(await post(opened, engine))
        async with asyncio.timeout(PATIENCE_S):
            await engine.left.wait()


async def test_letting_go_of_an_answer_closes_its_connection() -> None:
    async with peer(sends(WHOLE[:-2])) as engine, pool() as opened:
        answer = await post(opened, engine)
        answer.close()
        async with asyncio.timeout(PATIENCE_S):
            await engine.left.wait()


async def test_giving_up_before_the_answer_closes_its_connection() -> None:
    async with peer(sends(b"HTTP/1.1 200 OK\r\n")) as engine, pool() as opened:
        asking = asyncio.create_task(post(opened, engine))
        async with asyncio.timeout(PATIENCE_S):
            await engine.arrived.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await engine.left.wait()


@pytest.mark.parametrize("sent", [b"", WHOLE[:-2]])
async def test_an_engine_that_falls_silent_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SWEEP_EVERY_S", 0.01)
    async with peer(sends(sent)) as engine, pool(silence_timeout_s=0.05) as opened:
        with pytest.raises(Silent):
            await read(await post(opened, engine))


async def test_nobody_at_the_address_is_not_connected() -> None:
    async with pool() as opened:
        for url in ("http://127.0.0.1:9", "http://nobody.invalid"):
            with pytest.raises(NotConnected):
                await opened.post(url, "/v1/x", {}, b"{}")


async def test_a_slow_reader_makes_the_engine_wait() -> None:
    flood = b"x" * 100_000
    sent_bytes = 0

    async def send(writer: asyncio.StreamWriter) -> None:
        nonlocal sent_bytes
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1000 * len(flood)))
        for _ in range(1000):
            writer.write(flood)
            await writer.drain()
            sent_bytes += len(flood)

    async with peer(send) as engine, pool() as opened:
        answer = await post(opened, engine)
        before = -1
        async with asyncio.timeout(PATIENCE_S):
            while sent_bytes != before:
                before = sent_bytes
                await asyncio.sleep(0.2)
        assert 0 < sent_bytes < 30_000_000  # what the sockets' buffers took
        length = 0
        async with asyncio.timeout(PATIENCE_S):
            while part := await answer.read_any():
                length += len(part)
                assert len(part) < 2_000_000
        assert length == 1000 * len(flood)
