"""The whole ASGI application under a real uvicorn, in a thread, and clients for it.

Starting and stopping uvicorn costs a test a third of a second, so the tests of a module share one. What the gateway
keeps (its picture of the database, connections, counts) is made anew for each of them, and each leaves the server
without connections and without anything under way.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import openai
import pytest
import uvicorn

from inference.gateway.runtime import close_runtime, current_runtime
from tests.waiting import PATIENCE_S


class Gateway:
    """Where it listens, and clients for it, which are closed with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._clients = ExitStack()

    def openai(self, key: str) -> openai.OpenAI:
        """The `openai` client as people have it; only its retries are off, so that errors show."""
        client = openai.OpenAI(
            base_url=f"{self.url}/v1",
            api_key=key,
            max_retries=0,
            timeout=PATIENCE_S,
            # Reading the certificates of all the world takes longer than most tests, and there is no TLS here.
            http_client=openai.DefaultHttpxClient(verify=False, trust_env=False),
        )
        self._clients.callback(client.close)
        return client

    def http(self, key: str | None) -> httpx.Client:
        """A plain client. It keeps no connection, which a server may close just when it is to be used again."""
        client = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=PATIENCE_S,
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=False,
            trust_env=False,
        )
        self._clients.callback(client.close)
        return client

    def close(self) -> None:
        self._clients.close()


class _Uvicorn(uvicorn.Server):
    """Notices sooner that it is to stop."""

    loop: asyncio.AbstractEventLoop

    async def main_loop(self) -> None:
        self.loop = asyncio.get_running_loop()
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            await asyncio.sleep(0.02)


class Server:
    """uvicorn on a free port, started when it is first needed, and again if it has died."""

    def __init__(self) -> None:
        self._server: _Uvicorn | None = None
        self._thread: threading.Thread | None = None

    @contextmanager
    def serving(self) -> Iterator[Gateway]:
        """A gateway for one test: it begins knowing nothing, and ends with all that was under way."""
        if self._thread is None or not self._thread.is_alive():
            self._start()
        assert self._server is not None
        port = self._server.servers[0].sockets[0].getsockname()[1]
        gateway = Gateway(f"http://127.0.0.1:{port}")
        self._run(current_runtime())
        try:
            yield gateway
        finally:
            gateway.close()
            try:
                self._run(_hang_up(self._server))
            finally:
                self._run(close_runtime())

    def stop(self) -> None:
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server does not stop"

    def _start(self) -> None:
        from config.asgi import application

        # Without the lifespan events, which would open the gateway where no test has a database yet.
        config = uvicorn.Config(
            application,
            host="127.0.0.1",
            port=0,
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=600,
        )
        self._server, self._thread = start(config)

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        assert self._server is not None
        asyncio.run_coroutine_threadsafe(work, self._server.loop).result(2 * PATIENCE_S)


async def _hang_up(server: uvicorn.Server) -> None:
    """As if all clients went away; returns when the application has done with every one of them."""
    state = server.server_state
    deadline_s = time.monotonic() + PATIENCE_S
    while state.connections or state.tasks:
        assert time.monotonic() < deadline_s, f"goes on although its client is gone: {state.tasks}"
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.sleep(0.005)


def start(config: uvicorn.Config) -> tuple[_Uvicorn, threading.Thread]:
    """A server that listens, and the thread that it runs in."""
    server = _Uvicorn(config)
    thread = threading.Thread(target=server.run, name="uvicorn", daemon=True)
    thread.start()
    while not (server.started and hasattr(server, "loop")):
        assert thread.is_alive(), "the server ended while it started"
        time.sleep(0.002)
    return server, thread


@contextmanager
def serving() -> Iterator[Gateway]:
    """Another process, as it were: a server of its own from its first lifespan event to its last."""
    from config.asgi import application

    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, log_level="warning", access_log=False, timeout_graceful_shutdown=2
    )
    server, thread = start(config)
    gateway = Gateway(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
    try:
        yield gateway
    finally:
        gateway.close()
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not stop"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The module's server."""
    server = Server()
    yield server
    server.stop()
