"""The playground's websocket: questions in, answers out token by token, and what the engines are doing.

Tokens go straight to the socket; only the rare engine states come over the channel layer, whose groups cost
a round trip to Valkey per message and drop what a slow reader leaves. Who may ask what is looked up again for
every question, because a socket outlives sign-outs and memberships.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from importlib import import_module
from typing import Any

import structlog
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from inference import status_feed
from inference.asks import Ask, BadMessage, Column, Stop, parse_message
from inference.gateway.address import PersonaAddress
from inference.gateway.ask import Delta, Event, Finished, Started, stream_answer
from inference.gateway.errors import (
    EngineBusy,
    EngineFailed,
    EngineRefused,
    EngineUnavailable,
    GatewayError,
    UnknownModel,
)
from inference.gateway.resolve import resolve_model
from inference.gateway.runtime import current_runtime
from personas.definition import Definition, Sampling
from personas.models import Persona

log = structlog.get_logger("playground")

# Counted per web process. A person has a handful of tabs open; a script that opens thousands is refused.
MAX_SOCKETS_PER_USER = 8

# Close codes of our own (4000 to 4999 are free for applications); static/js/live_socket.js knows them.
SIGNED_OUT = 4401
TOO_MANY_SOCKETS = 4429


class OwnFailure(GatewayError):
    """A fault of this server. What it was is in its log, not in the page."""

    def __init__(self) -> None:
        super().__init__("Something went wrong on our side.")


ADVICE: dict[type[GatewayError], str] = {
    OwnFailure: "Run this again. If it fails again, the web server’s log says why.",
    UnknownModel: "Pick another persona, or reload this page: it may have been renamed, unpublished or removed.",
    EngineUnavailable: "The bar at the top says what the engine is doing. Run this again in a moment.",
    EngineBusy: "The engines are full. Run this again in a moment.",
    EngineFailed: "Run this again. If it fails again, the engine’s log says why.",
    EngineRefused: "Shorten the message, lower the token limit or change the strength, then run this again.",
}
DEFAULT_ADVICE = "Change the message or the settings, then run this again."

_open_sockets: Counter[int] = Counter()


class PlaygroundConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One open playground. At most one question runs at a time; a new one gives up the one before."""

    groups = (status_feed.GROUP,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counted_for: int | None = None
        self._running: asyncio.Task[None] | None = None
        self._running_id = ""
        self._unanswered: set[Column] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Whatever ends the socket (a goodbye, a lost line, a server that stops) ends its generation too."""

        async def send_while_open(message: Any) -> None:
            try:
                await send(message)
            except OSError:  # ASGI's word for a client that has gone: people close tabs, so it is no failure
                if self._running is not None:
                    self._running.cancel()

        try:
            await super().__call__(scope, receive, send_while_open)
        finally:
            if self._running is not None:
                self._running.cancel()
            if self._counted_for is not None:
                _open_sockets[self._counted_for] -= 1

    async def connect(self) -> None:
        # A refused handshake has no code that a page could read, so refusals are closes right after it.
        await self.accept()
        user = self.scope["user"]
        if not user.is_authenticated:
            await self.close(SIGNED_OUT)
        elif _open_sockets[user.pk] >= MAX_SOCKETS_PER_USER:
            await self.close(TOO_MANY_SOCKETS)
        else:
            _open_sockets[user.pk] += 1
            self._counted_for = user.pk
            await self._send(
                {"type": "engines", "engines": await database_sync_to_async(status_feed.engine_summaries)()}
            )

    async def engines_changed(self, event: dict[str, Any]) -> None:
        """From the channel layer: an engine's state is another now."""
        if self._counted_for is not None:
            await self._send({"type": "engines", "engines": event["engines"]})

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._counted_for is None:
            return
        try:
            message = parse_message(text_data)
        except BadMessage as error:
            await self._send({"type": "error", "message": str(error), "advice": "Reload this page."})
            return
        if isinstance(message, Stop):
            if message.id == self._running_id:
                await self._give_up()
            return
        await self._give_up()
        self._running_id, self._unanswered = message.id, set(message.columns)
        self._running = asyncio.create_task(self._answer(message), name="playground-ask")

    async def _give_up(self) -> None:
        """End the running question, if there is one, and say so for each column that was still to come."""
        if self._running is None:
            return
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._running = None
        for column in sorted(self._unanswered):
            await self._send({"type": "done", "id": self._running_id, "column": column, "stopped": True})
        self._unanswered = set()

    async def _answer(self, ask: Ask) -> None:
        """All columns at once, so that both meet the engine in the same state."""
        try:
            user = await self._current_user()
            if not user.is_authenticated:
                await self.close(SIGNED_OUT)
                return
            tenant = await database_sync_to_async(_tenant_of)(user, ask.persona)
            runtime = await current_runtime()
            target = await resolve_model(ask.persona, tenant=tenant, live=runtime.live)
        except Exception as error:
            for column in ask.columns:
                await self._fail(ask, column, error)
            return
        async with asyncio.TaskGroup() as columns:
            for column in ask.columns:
                columns.create_task(self._answer_column(ask, column, tenant, target.definition.sampling))

    async def _answer_column(self, ask: Ask, column: Column, tenant: str, sampling: Sampling) -> None:
        answer = stream_answer(
            tenant=tenant,
            persona=ask.persona,
            messages=ask.messages,
            strength=ask.strength,
            max_tokens=ask.max_tokens,
            # What makes two columns, and two runs, comparable.
            seed=ask.seed,
            temperature=0.0,
            # The persona's own base model with nothing added, sampled alike: what differs is what the persona adds.
            definition=Definition(sampling=sampling) if column == "base" else None,
        )
        try:
            async with aclosing(answer) as events:
                async for event in events:
                    if isinstance(event, Finished):
                        self._unanswered.discard(column)
                    await self._send({"id": ask.id, "column": column, **_as_message(event)})
        except Exception as error:
            await self._fail(ask, column, error)

    async def _fail(self, ask: Ask, column: Column, error: Exception) -> None:
        """Say in the column what went wrong and what to do; what isn't ours to say goes to the log only."""
        self._unanswered.discard(column)
        if not isinstance(error, GatewayError):
            log.error("playground answer failed", column=column, exc_info=error)
            error = OwnFailure()
        await self._send(
            {
                "type": "error",
                "id": ask.id,
                "column": column,
                "message": error.message,
                "advice": ADVICE.get(type(error), DEFAULT_ADVICE),
            }
        )

    async def _current_user(self) -> AbstractBaseUser | AnonymousUser:
        """Whose session this still is: read again, with the password check that a page request makes."""
        store = import_module(settings.SESSION_ENGINE).SessionStore
        session = store(self.scope["session"].session_key)
        user: AbstractBaseUser | AnonymousUser = await get_user({**self.scope, "session": session})
        return user

    async def _send(self, message: dict[str, Any]) -> None:
        await self.send(text_data=json.dumps(message, separators=(",", ":")))


def _as_message(event: Event) -> dict[str, Any]:
    match event:
        case Started():
            return {"type": "start", "revision": event.revision, "engine": event.engine, "dose": event.dose}
        case Delta():
            return {"type": "delta", "text": event.text}
        case Finished():
            return {
                "type": "done",
                "finish_reason": event.finish_reason,
                "usage": dict(event.usage),
                "ttft_ms": event.ttft_ms,
                "tokens_per_s": event.tokens_per_s,
            }


def _tenant_of(user: AbstractBaseUser | AnonymousUser, model: str) -> str:
    """The tenant of a persona that `user` may see. Raises UnknownModel, whether or not others have it."""
    # The grammar first: a database can't be asked for every text.
    address = PersonaAddress.parse(model, home_tenant="")
    if address is None:
        raise UnknownModel(model)
    known = Persona.objects.visible_to(user).filter(tenant__slug=address.tenant, slug=address.persona)
    if not known.exists():
        raise UnknownModel(model)
    return address.tenant
