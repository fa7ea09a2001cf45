"""The clients of `make bench-gateway`: raw sockets and prepared requests, so that they cost less than what they ask.

A process of its own that answers each line of JSON on standard input, the arguments of `measure`, with one. Every
answer is looked at: the right status, and all of its words. Bounded in time and number, and only for loopback.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import psutil
import uvloop

from benchmarks.gateway import CHUNKS, WORD

MAX_CONCURRENCY = 400
MAX_DURATION_S = 30.0
# For what is under way when the time is up.
PATIENCE_S = 90.0
CONNECT_PAUSE_S = 0.002

_WORD = WORD.encode()
_KEEP = len(_WORD) - 1  # bytes that may be the beginning of a word


@dataclass(slots=True)
class Tally:
    """What all clients of one measurement saw. Times in seconds."""

    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    chunks: int = 0
    errors: list[str] = field(default_factory=list)


class Client(asyncio.Protocol):
    """One connection that asks, reads to the end and asks again until `until_s`."""

    def __init__(self, which: int) -> None:
        self._which = which
        self._requests: list[bytes] = []
        self._tally = Tally()
        self._until_s = 0.0
        self._ended: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._clear()

    def _clear(self) -> None:
        self._head = b""
        self._in_body = False
        self._left: int | None = None  # bytes of a body whose length was told
        self._tail = b""
        self._words = 0
        self._first_s = 0.0
        self._began_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are of no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._ended is not None and not self._ended.done():
            self._tally.errors.append(f"the connection was closed after {self._words} words")
            self._ended.set_result(None)

    def ask_until(self, until_s: float, requests: list[bytes], tally: Tally) -> asyncio.Future[None]:
        """Ask at least once, and again until `until_s` on the performance counter, one request after the other."""
        self._ended = ended = asyncio.get_running_loop().create_future()
        self._until_s, self._requests, self._tally = until_s, requests, tally
        if self._transport is None:
            self._tally.errors.append("the connection was closed between requests")
            ended.set_result(None)
        else:
            self._ask()
        return ended

    def close(self) -> None:
        self._ended = None
        if self._transport is not None:
            self._transport.abort()

    def _ask(self) -> None:
        assert self._transport is not None
        self._clear()
        self._which = (self._which + 7) % len(self._requests)
        self._began_s = time.perf_counter()
        self._transport.write(self._requests[self._which])

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._in_body = True
            self._head = head.lower()
            _, found, rest = self._head.partition(b"\r\ncontent-length:")
            self._left = int(rest.split(b"\r\n", 1)[0]) if found else None
        data = self._tail + data
        words = data.count(_WORD)
        if words and not self._words:
            self._first_s = time.perf_counter()
        self._words += words
        if self._left is not None:
            self._left -= len(data) - len(self._tail)
        self._tail = data[-_KEEP:]
        if self._left == 0 or (self._left is None and data.endswith(b"0\r\n\r\n")):
            self._end()

    def _end(self) -> None:
        now_s = time.perf_counter()
        if not self._head.startswith(b"http/1.1 200") or self._words != CHUNKS:
            self._tally.errors.append(f"{self._head[:12].decode()}, {self._words} words")
        else:
            self._tally.first_s.append(self._first_s - self._began_s)
            self._tally.whole_s.append(now_s - self._began_s)
            self._tally.chunks += self._words
        if now_s < self._until_s and self._transport is not None and not self._transport.is_closing():
            self._ask()
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


async def measure(
    port: int,
    models: list[str],
    keys: list[str],
    pids: list[int],
    stream: bool,
    concurrency: int,
    duration_s: float,
    spread_s: float = 0.0,
) -> dict[str, Any]:
    """Ask with `concurrency` connections for `duration_s`, and wait for what is under way then.

    All begin together, or over `spread_s`. Each connection has made one whole, uncounted request before. The CPU time
    is that of `pids`, the server's processes.
    """
    assert concurrency <= MAX_CONCURRENCY and duration_s <= MAX_DURATION_S
    warm, wanted = Tally(), Tally()
    clients = await connect(port, concurrency)
    began_s, began_cpu_s, began_load_s = time.perf_counter(), cpu_of(pids), time.process_time()
    try:
        async with asyncio.timeout(PATIENCE_S):
            whole = prepare(port, models, keys, stream=False)
            await asyncio.gather(*(client.ask_until(0.0, whole, warm) for client in clients))
        requests = prepare(port, models, keys, stream=stream)
        began_s, began_cpu_s, began_load_s = time.perf_counter(), cpu_of(pids), time.process_time()
        async with asyncio.timeout(duration_s + PATIENCE_S):
            asking = []
            for number, client in enumerate(clients):
                if spread_s:
                    await asyncio.sleep(max(0.0, began_s + number * spread_s / concurrency - time.perf_counter()))
                asking.append(client.ask_until(began_s + duration_s, requests, wanted))
            await asyncio.gather(*asking)
    except TimeoutError:
        wanted.errors.append(f"not done {PATIENCE_S:.0f} s after the time was up")
    took_s = time.perf_counter() - began_s
    cpu_s, load_s = cpu_of(pids) - began_cpu_s, time.process_time() - began_load_s
    for client in clients:
        client.close()
    errors = warm.errors + wanted.errors
    return {
        "took_s": took_s,
        "requests": len(wanted.whole_s),
        "chunks": wanted.chunks,
        "first_ms": percentiles(wanted.first_s),
        "whole_ms": percentiles(wanted.whole_s),
        "cpu_s": cpu_s,
        "load_cores": load_s / took_s,
        "errors": len(errors),
        "error": errors[0] if errors else None,
    }


async def connect(port: int, count: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(count):
        _, client = await loop.create_connection(partial(Client, number * 13), "127.0.0.1", port)
        clients.append(client)
        await asyncio.sleep(CONNECT_PAUSE_S)
    return clients


def prepare(port: int, models: list[str], keys: list[str], *, stream: bool) -> list[bytes]:
    """The bytes of a request for each model with each key."""
    messages = [
        {"role": "system", "content": "Answer in two sentences, and say what you are not sure of."},
        {"role": "user", "content": "My order 4711 hasn't come yet. Where is it, and when will it be here? " * 2},
    ]
    prepared = []
    for model in models:
        body = {"model": model, "messages": messages, "max_tokens": CHUNKS, "temperature": 0.7, "stream": stream}
        data = json.dumps(body).encode()
        for key in keys:
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
                f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
            )
            prepared.append(head.encode() + data)
    return prepared


def cpu_of(pids: list[int]) -> float:
    """Seconds of CPU that the processes have had."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    if not ordered:
        return {}
    pick = {"p50": 0.50, "p99": 0.99}
    return {name: ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000 for name, share in pick.items()}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(uvloop.run(measure(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
