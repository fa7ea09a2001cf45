"""What a request may take, what it is charged in the end, and the limits it passes through on the way.

    async with runtime.metering.admit(key, persona, upstream_body, kind) as admission:
        …                                   # ask the engine
        admission.settle(usage)             # or admission.follow(rewriter), whose usage comes last

Leaving the block charges. A request that ended before its usage was known is charged its prompt, as it was estimated,
and what was streamed of its answer; one that failed before any of it was streamed, nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections
from redis.exceptions import RedisError

from inference.gateway.directory import NO_LIMITS, Key, Limits, Tenant
from inference.gateway.errors import EngineRefused, GatewayError, LimitsUnavailable
from inference.gateway.limits import UNLIMITED, Grant, Limiter
from inference.gateway.live import LiveDirectory
from inference.gateway.usage import Amounts, UsageBook, read_usage
from inference.usage import tokens_spent

# An estimate of a prompt is meant to be too high rather than too low: what it takes beyond is charged all the same,
# but only when it is done. Tokenizers make a token of three to five letters of a text, and up to one of each byte
# of a script they hardly know.
CHARS_PER_TOKEN = 3
TEMPLATE_TOKENS = 64  # what chat templates add, a system prompt of their own included
MESSAGE_TOKENS = 8
TOOLS_TOKENS = 256  # the instructions that come with the first tool
MEDIA_TOKENS = 2048  # an image or a sound
TOKENS_OF_COMPLETION = 16  # vLLM's own default for /v1/completions

_ANSWER_FIELDS = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completion": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "embedding": (),
}
_PROMPT_FIELDS = ("messages", "prompt", "input", "instructions")
_JSON_FIELDS = ("tools", "documents", "functions")


class Followed(Protocol):
    """A stream that is passed on: its usage, once it has come, and how many events have been sent."""

    usage: dict[str, Any] | None
    events: int


class Metering:
    """Belongs to one event loop."""

    def __init__(self, live: LiveDirectory, redis_url: str) -> None:
        self._live = live
        self.limiter = Limiter(redis_url, spent=_spent)
        self.book = UsageBook(redis_url)

    async def close(self) -> None:
        await self.limiter.close()
        await self.book.close()

    def admit(
        self, key: Key | None, persona: str, body: dict[str, Any], kind: str, *, tenant: str = ""
    ) -> AbstractAsyncContextManager[Admission]:
        """Let a composed request in. Entering raises LimitReached, LimitsUnavailable.

        `persona` is a slug, empty for the base model. Without a `key` it is the `tenant`'s dashboard that asks. Where
        tokens are limited and nothing says how long an answer may be, `body` gets a bound that can be reserved.
        """
        return Admission(self, key, key.tenant if key is not None else tenant, persona, body, kind)

    async def limits_of(self, tenant: str) -> Limits:
        """The tenant's. Raises EngineUnavailable where it is not known yet and can't be read."""
        if (known := self._live.current.tenants.get(tenant)) is None:
            known = (await self._live.refreshed({"tenant"})).tenants.get(tenant, Tenant())
        return known.limits


class Admission:
    """One request's way through the limits."""

    def __init__(
        self,
        metering: Metering,
        key: Key | None,
        tenant: str,
        persona: str,
        body: dict[str, Any],
        kind: str,
    ) -> None:
        self._metering = metering
        self._key = key
        self._tenant = tenant
        self._persona = persona
        self._body = body
        self._kind = kind
        self._grant: Grant = UNLIMITED
        self._day = ""
        self._usage: Mapping[str, Any] | None = None
        self._followed: Followed | None = None
        self._answered = False
        self._failed = False

    async def __aenter__(self) -> Admission:
        self._day = _today()
        tenant_limits = await self._metering.limits_of(self._tenant)
        key_limits = self._key.limits if self._key is not None else NO_LIMITS
        if tenant_limits.counts_tokens or key_limits.counts_tokens:
            bound_answer(self._body, self._kind)
        if tenant_limits.any or key_limits.any:
            tokens = estimate_prompt(self._body) + bound_of_answer(self._body, self._kind)
            self._grant = await self._metering.limiter.admit(self._key, self._tenant, tenant_limits, tokens)
        return self

    def headers(self) -> Mapping[str, str]:
        """What is left of the minute's limits, as the `x-ratelimit-` headers of the answer."""
        return self._grant.headers

    def settle(self, usage: Mapping[str, Any] | None, *, failed: bool = False) -> None:
        """What the engine says was used; `failed` for a stream that broke off."""
        self._usage = usage
        self._failed = failed
        self._answered = not failed

    def follow(self, stream: Followed) -> None:
        """Take the usage from `stream`, or from what was sent of it when that is all there is."""
        self._followed = stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, GatewayError):
            error.headers = {**self._grant.headers, **error.headers}
        amounts = self._charge(error)
        # A request that the engine refused was at fault itself, and counts; what we could not do does not.
        refunded = not amounts.tokens and not isinstance(error, EngineRefused)
        self._metering.limiter.settle(self._grant, amounts.tokens, counts=not refunded)
        key = self._key.prefix if self._key is not None else ""
        self._metering.book.count(self._tenant, self._persona, key, self._day, amounts)

    def _charge(self, error: BaseException | None) -> Amounts:
        followed = self._followed
        usage = self._usage or (followed.usage if followed is not None else None)
        failed = self._failed or isinstance(error, Exception)
        is_gone = error is not None and not isinstance(error, GatewayError)
        if usage is not None:
            amounts = read_usage(usage)
        elif followed is not None and followed.events > 1:
            # The first event of a chat holds no token; every other holds at least one.
            amounts = Amounts(prompt_tokens=estimate_prompt(self._body), completion_tokens=followed.events - 1)
        elif is_gone or self._answered:
            amounts = Amounts(prompt_tokens=estimate_prompt(self._body))
        else:
            amounts = Amounts()
            failed = True
        amounts.requests, amounts.failures = 1, int(failed and not is_gone)
        return amounts


def bound_answer(body: dict[str, Any], kind: str) -> None:
    """Give a request that leaves the length of its answer to the engine a bound."""
    if kind in ("chat", "responses") and not any(body.get(name) is not None for name in _ANSWER_FIELDS[kind]):
        least = _whole(body.get("min_tokens"), 0)
        body[_ANSWER_FIELDS[kind][0]] = max(settings.DEFAULT_ANSWER_TOKENS, least)


def bound_of_answer(body: Mapping[str, Any], kind: str) -> int:
    """The most tokens that the answers to `body` can have together."""
    names = _ANSWER_FIELDS.get(kind, ())
    if not names:
        return 0
    default = TOKENS_OF_COMPLETION if kind == "completion" else settings.DEFAULT_ANSWER_TOKENS
    tokens = next((_whole(body[name], default) for name in names if body.get(name) is not None), default)
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return tokens * prompts * max(_whole(body.get("n"), 1), _whole(body.get("best_of"), 1), 1)


def estimate_prompt(body: Mapping[str, Any]) -> int:
    """How many tokens the prompts of `body` may have. Numbers in a list are tokens; media count as large ones do."""
    tokens = TEMPLATE_TOKENS
    for name in _PROMPT_FIELDS:
        if (value := body.get(name)) is not None:
            tokens += _tokens_in(value)
    for name in _JSON_FIELDS:
        if value := body.get(name):
            tokens += TOOLS_TOKENS + _tokens_of_text(json.dumps(value))
    return tokens


def _tokens_in(value: Any) -> int:
    if isinstance(value, str):
        return _tokens_of_text(value)
    if isinstance(value, dict):
        if _is_media(value):
            return MEDIA_TOKENS
        return MESSAGE_TOKENS + sum(_tokens_in(part) for part in value.values())
    if isinstance(value, list):
        if value and isinstance(value[0], int):
            return len(value)
        return sum(_tokens_in(part) for part in value)
    return 1


def _is_media(part: Mapping[str, Any]) -> bool:
    """A part such as `{"type": "image_url", "image_url": {"url": …}}`, whose text is no prompt."""
    kind = part.get("type")
    return isinstance(kind, str) and kind.startswith(("image", "input_image", "audio", "input_audio", "video", "file"))


def _tokens_of_text(text: str) -> int:
    tokens = -(-len(text) // CHARS_PER_TOKEN)
    return tokens if text.isascii() else tokens + len(text.encode("utf-8", "replace")) - len(text)


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


_days: dict[int, str] = {}


def _today() -> str:
    """Today's date in UTC, which is written once a day."""
    day = int(time.time()) // 86400
    if (written := _days.get(day)) is None:
        _days.clear()
        written = _days[day] = datetime.fromtimestamp(day * 86400, UTC).date().isoformat()
    return written


async def _spent(tenant: str, key: str | None, now: datetime) -> tuple[int, int]:
    try:
        return await asyncio.to_thread(_read_spent, tenant, key, now)
    except (RedisError, DatabaseError, OSError) as error:
        raise LimitsUnavailable from error


def _read_spent(tenant: str, key: str | None, now: datetime) -> tuple[int, int]:
    try:
        return tokens_spent(tenant, key, now.date())
    finally:
        connections.close_all()
