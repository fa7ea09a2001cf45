"""What the engine core knows of steering: which vectors its workers hold, and which of them are in use.

The engine core is the only process that knows every unfinished request, so it decides whether a vector may go,
and it is single-threaded between steps, so its decisions are atomic. Requests arrive on another thread, ahead of
the core's queue: those are counted from their arrival.
"""

import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from steerguard import __version__
from steerguard.blend import UnknownVector
from steerguard.integrations.vllm.wire import RequestPlan, vectors_of
from steerguard.vectors import read_vector

Rpc = Callable[..., list[Any]]


class CoreRegistry:
    """Digests that every worker holds, and the arrivals that need them. Made anew at each start of the engine."""

    def __init__(self) -> None:
        self.boot_id = uuid.uuid4().hex
        self._held: set[str] = set()
        self._arriving: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def arrive(self, request_id: str, plan: RequestPlan) -> None:
        """Notes a request on its way to the scheduler. UnknownVector if a vector was removed since its admission."""
        needed = vectors_of(plan)
        with self._lock:
            for digest in sorted(needed - self._held):
                raise UnknownVector("steerguard.blend.vector", "a vector registered on this engine", digest)
            self._arriving[request_id] = needed

    def settle(self, request_id: str) -> None:
        """The scheduler has the request now, or has refused it."""
        with self._lock:
            self._arriving.pop(request_id, None)

    def register(self, rpc: Rpc, payload: bytes) -> dict[str, Any]:
        """Gives every worker the vector of a canonical file: all of them hold it afterwards, or none."""
        digest = read_vector(payload).digest
        with self._lock:
            if digest in self._held:
                return {"digest": digest, "created": False}
        try:
            rpc("steerguard_register", args=(payload,))
        except Exception:
            rpc("steerguard_remove", args=(digest,))
            raise
        with self._lock:
            self._held.add(digest)
        return {"digest": digest, "created": True}

    def remove(self, rpc: Rpc, digest: str, unfinished: Iterable[RequestPlan]) -> str:
        """Takes a vector from every worker: "removed", "in_use" or "unknown"."""
        used = {vector for plan in unfinished for vector in vectors_of(plan)}
        with self._lock:
            if digest not in self._held:
                return "unknown"
            if digest in used or any(digest in needed for needed in self._arriving.values()):
                return "in_use"
            self._held.discard(digest)
        rpc("steerguard_remove", args=(digest,))
        return "removed"

    def state(self, rpc: Rpc, unfinished: Iterable[RequestPlan]) -> dict[str, Any]:
        """Figures of the first worker, memory over all of them, and what is in use."""
        workers = rpc("steerguard_state")
        used = {vector for plan in unfinished for vector in vectors_of(plan)}
        with self._lock:
            arriving = set().union(*self._arriving.values())
            return {
                "boot_id": self.boot_id,
                "plugin_version": __version__,
                "vectors": sorted(self._held),
                "in_use": sorted(used | arriving),
                "workers": len(workers),
                **workers[0],
                "bytes_allocated": sum(w["bytes_allocated"] for w in workers),
            }
