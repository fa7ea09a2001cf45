"""Bringing an engine to the desired state: every vector that a persona of its base model is made of is there, and of
the others those that a request can name as a skill, as far as MAX_SKILL_MIB reaches.

One pass looks at the engine, sends what is missing, removes what it put there and nobody wants any more, and
stores what it found. An engine that restarted has a new boot id and no vectors, so everything is missing and
is sent again. A pass never raises because of an engine: whatever is wrong with it becomes its status, and the
next pass, seconds later, tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import zip_longest

import structlog
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.utils import timezone

from inference import secret_text
from inference.engine_client import (
    EngineClient,
    EngineError,
    EngineMalformed,
    EngineNotListening,
    EngineRefused,
    EngineSlow,
    EngineState,
    VectorBusy,
    connect,
)
from inference.models import Engine
from inference.services import Observation, note_placed, record_observation
from personas import vector_files
from personas.changes import valkey
from personas.models import SteeringVector, SteeringVectorQuerySet

log = structlog.get_logger("engines")

FLOAT32_BYTES = 4

# A pass starts nothing new after its budget and is cut off at its limit; its lock outlasts both.
PASS_BUDGET_S = 30.0
PASS_LIMIT_S = 45.0
LOCK_S = 60.0
# For so long after its registration, an engine that doesn't listen yet is thought to be loading its model.
STARTING_GRACE = timedelta(minutes=15)
# An engine in service that doesn't answer in time is thought to be busy, for so long since it last did.
BUSY_GRACE = timedelta(minutes=1)


@dataclass(frozen=True)
class WantedVector:
    """A vector that has to be on the engine."""

    digest: str
    name: str
    layers: tuple[int, ...]
    hidden_size: int
    in_use: bool = True
    """By a persona; a vector that isn't can be asked for as a skill only."""

    def fits(self, state: EngineState) -> bool:
        return self.hidden_size == state.hidden_size and max(self.layers) < state.num_layers


def reconcile_exclusively(pk: int, *, on_change: bool) -> None:
    """One pass over the engine, unless one is under way, which then is followed by another if `on_change`."""
    again = f"steerguard:reconcile:{pk}:again"
    while True:
        lock = valkey().lock(f"steerguard:reconcile:{pk}", timeout=LOCK_S)
        if not lock.acquire(blocking=False):
            if on_change:
                valkey().set(again, 1, ex=int(LOCK_S))
            return
        try:
            valkey().delete(again)
            engine = Engine.objects.filter(pk=pk, enabled=True).first()
            if engine is not None:
                async_to_sync(reconcile)(engine)
        finally:
            if lock.owned():
                lock.release()
        if not valkey().getdel(again):
            return
        on_change = True


async def reconcile(engine: Engine) -> Observation:
    """One pass over the engine; what it found, which is also stored. Doesn't raise because of the engine."""
    try:
        async with asyncio.timeout(PASS_LIMIT_S), connect(engine.url, engine.api_key) as client:
            observation = await _bring(engine, client)
    except (EngineError, TimeoutError, secret_text.Unreadable) as error:
        observation = _explain(engine, error)
    await sync_to_async(record_observation)(engine=engine, observation=observation)
    return observation


async def _bring(engine: Engine, client: EngineClient) -> Observation:
    """Look, send, remove. Raises EngineError."""
    state = await client.state()
    seen = Observation(
        status=Engine.Status.READY,
        answered=True,
        boot_id=state.boot_id,
        base_model=state.model,
        hidden_size=state.hidden_size,
        num_layers=state.num_layers,
    )
    if engine.expected_base_model not in ("", state.model):
        detail = f"serves {state.model}, but was registered to serve {engine.expected_base_model}"
        return replace(seen, status=Engine.Status.INCOMPATIBLE, detail=detail)

    wanted = await sync_to_async(wanted_vectors)(state.model)
    fitting = {digest: vector for digest, vector in wanted.items() if vector.fits(state)}
    in_use = [vector for vector in wanted.values() if vector.in_use]
    if in_use and not any(vector.fits(state) for vector in in_use):
        detail = (
            f"its {state.model} has hidden size {state.hidden_size} and {state.num_layers} layers: "
            "no vector made for that model fits"
        )
        return replace(seen, status=Engine.Status.INCOMPATIBLE, detail=detail)

    present = await client.vector_digests()
    restarted = state.boot_id != engine.boot_id
    placed = present & set(() if restarted else engine.placed_digests)
    placed -= await _remove(client, placed - wanted.keys())
    missing = [vector for digest, vector in fitting.items() if digest not in present]
    await sync_to_async(note_placed)(
        engine=engine, boot_id=state.boot_id, digests=placed | {vector.digest for vector in missing}
    )
    was_ready = engine.status == Engine.Status.READY and not restarted
    if any(vector.in_use for vector in missing) and not was_ready:
        sending = replace(seen, status=Engine.Status.STARTING, detail=f"sending {_count(len(missing))}")
        await sync_to_async(record_observation)(engine=engine, observation=sending)
    unsent, refused = await _send(client, missing)
    if unsent:
        # An engine in service stays so: a tenant that adds many vectors doesn't stop the others.
        lacks_any_persona = any(wanted[digest].in_use for digest in unsent)
        status = Engine.Status.STARTING if lacks_any_persona and not was_ready else Engine.Status.READY
        return replace(seen, status=status, detail=f"sending {_count(len(unsent))}")

    unplaceable = sorted(digest for digest in {*refused, *(wanted.keys() - fitting.keys())} if wanted[digest].in_use)
    if unplaceable:
        log.warning("vectors can't be placed", engine=engine.name, digests=unplaceable)
        # Only the personas made of them suffer, and fail closed: the engine refuses a digest that it lacks.
        return replace(seen, detail=f"{_count(len(unplaceable))} can't be placed there")
    return seen


async def _remove(client: EngineClient, digests: set[str]) -> set[str]:
    """Those that are gone; one that a request still uses is left for a later pass."""
    gone = set()
    for digest in sorted(digests):
        with contextlib.suppress(VectorBusy):
            await client.delete_vector(digest)
            gone.add(digest)
    return gone


async def _send(client: EngineClient, vectors: list[WantedVector]) -> tuple[list[str], list[str]]:
    """Digests for which there was no time, and those that can't be placed however often one tries."""
    deadline_s = asyncio.get_running_loop().time() + PASS_BUDGET_S
    refused: list[str] = []
    for index, vector in enumerate(vectors):
        if asyncio.get_running_loop().time() > deadline_s:
            return [late.digest for late in vectors[index:]], refused
        try:
            data = await asyncio.to_thread(vector_files.path_of(vector.digest).read_bytes)
            await client.put_vector(vector.digest, data, name=vector.name)
        except FileNotFoundError:
            log.error("vector file is missing", digest=vector.digest)
            refused.append(vector.digest)
        except EngineRefused as error:
            if error.status not in (400, 409, 413):
                raise
            log.error("engine refuses a vector", digest=vector.digest, error=str(error))
            refused.append(vector.digest)
    return [], refused


def wanted_vectors(base_model: str) -> dict[str, WantedVector]:
    """By digest, the vectors of every draft and revision for this base model, whichever tenant's, then the skills."""
    rows = SteeringVector.objects.filter(base_model=base_model)
    wanted = {row.digest: _wanted(row, in_use=True) for row in rows.in_use()}
    left_bytes = settings.MAX_SKILL_MIB * 2**20
    for row in _by_turns(_askable(rows)):
        if row.digest in wanted:
            continue
        left_bytes -= row.hidden_size * len(row.layers) * FLOAT32_BYTES
        if left_bytes < 0:
            log.warning(
                "not every skill has room on the engines", base_model=base_model, limit_mib=settings.MAX_SKILL_MIB
            )
            break
        wanted[row.digest] = _wanted(row, in_use=False)
    return wanted


def _wanted(row: SteeringVector, *, in_use: bool) -> WantedVector:
    return WantedVector(row.digest, row.name, tuple(row.layers), row.hidden_size, in_use)


def _askable(rows: SteeringVectorQuerySet) -> dict[int | None, list[SteeringVector]]:
    """By owner and newest first, the vectors that a name stands for: the newest of each name."""
    newest: dict[tuple[int | None, str], SteeringVector] = {}
    for row in rows.order_by("-created_at", "-pk"):
        newest.setdefault((row.tenant_id, row.name), row)
    by_owner: dict[int | None, list[SteeringVector]] = {}
    for (owner, _), row in newest.items():
        by_owner.setdefault(owner, []).append(row)
    return by_owner


def _by_turns(by_owner: Mapping[int | None, list[SteeringVector]]) -> Iterator[SteeringVector]:
    """One of each owner's, then the next of each: nobody's many uploads keep out another's few."""
    for turn in zip_longest(*by_owner.values()):
        yield from (row for row in turn if row is not None)


def _explain(engine: Engine, error: Exception) -> Observation:
    """What a failed pass says about the engine. The engine's own words stay in the log: they may name vectors."""
    match error:
        case EngineNotListening() if _may_be_starting(engine):
            return Observation(status=Engine.Status.STARTING, detail="loading the model, which takes a minute or two")
        case EngineSlow() | TimeoutError() if _may_be_busy(engine):
            return Observation(status=Engine.Status.READY, detail="busy: slow to answer")
        case EngineRefused(status=401 | 403):
            return Observation(status=Engine.Status.INCOMPATIBLE, detail="refuses the key that it was registered with")
        case EngineRefused(status=404):
            return Observation(
                status=Engine.Status.INCOMPATIBLE,
                detail="answers, but has no SteerGuard plugin (is it named in VLLM_PLUGINS?)",
            )
        case EngineRefused():
            log.warning("engine answers with an error", engine=engine.name, error=str(error))
            return Observation(status=Engine.Status.UNREACHABLE, detail=f"answers with an error (HTTP {error.status})")
        case EngineMalformed():
            return Observation(status=Engine.Status.INCOMPATIBLE, detail=str(error))
        case TimeoutError():
            return Observation(
                status=Engine.Status.UNREACHABLE, detail=f"too slow: not done within {PASS_LIMIT_S:.0f} s"
            )
        case _:
            return Observation(status=Engine.Status.UNREACHABLE, detail=str(error))


def _may_be_starting(engine: Engine) -> bool:
    seen_since = engine.last_seen_at is not None and engine.last_seen_at >= engine.registered_at
    return not seen_since and timezone.now() < engine.registered_at + STARTING_GRACE


def _may_be_busy(engine: Engine) -> bool:
    if engine.status != Engine.Status.READY or engine.last_seen_at is None:
        return False
    return timezone.now() < engine.last_seen_at + BUSY_GRACE


def _count(number: int) -> str:
    return "1 vector" if number == 1 else f"{number} vectors"
