"""A running engine, asked over HTTP: any OpenAI-compatible server for answers, one with the SteerGuard plugin for
steered ones.

The openai client does the waiting and trying again (connection errors, 408, 409, 429 and 5xx, with back-off). Many
questions are in flight at once, so that they share the engine's batches.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient

from steerguard.extraction.progress import ShouldStop, stop_if
from steerguard.vectors import SteeringVector, write_vector

CONCURRENCY = 64
TIMEOUT_S = 300.0
RETRIES = 5
STOP_POLL_S = 0.25
NO_KEY = "none"
NORM_DIGITS = 4
"""Significant digits of ‖h‖ that are used: its last ones differ between starts of an engine."""

Message = Mapping[str, str]
Blend = Sequence[Mapping[str, Any]]
"""Components as docs/plugin.md describes them."""


class EngineError(RuntimeError):
    """The engine can't be reached, or won't do what it was asked."""


@dataclass(frozen=True)
class Answer:
    """What the engine said. The token ids are those it ran on, empty where it doesn't tell them."""

    text: str
    prompt_ids: tuple[int, ...] = ()
    answer_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineState:
    """What calibration needs to know of an engine (`GET /v1/steering`)."""

    model: str
    num_layers: int
    hidden_size: int
    norms: Mapping[int, float]
    """‖h‖ by block, against which the engine counts doses, rounded: it measures anew at each start, and what is asked
    again after one should be the same question."""
    dose_ceiling: float


class Engine:
    """An engine at `url` (without `/v1`, or with it). Used as an async context manager.

    `model` defaults to the first that the engine names. Whoever asks much keeps `concurrency` questions in flight.
    Raises ValueError unless that is at least one.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        model: str | None = None,
        concurrency: int = CONCURRENCY,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: expected at least 1, found {concurrency}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self.concurrency = concurrency
        # A proxy in the environment is for the world outside, and a plain client would take it for loopback too.
        self._client = AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key=key or NO_KEY,
            timeout=timeout_s,
            max_retries=retries,
            http_client=DefaultAsyncHttpxClient(trust_env=False) if _is_local(self.url) else None,
        )
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> "Engine":
        await self._closing.enter_async_context(self._client)
        if self._model is None:
            with _told(self.url):
                models = [model.id async for model in self._client.models.list()]
            if not models:
                raise EngineError(f"{self.url}: expected an engine that serves a model, found none")
            self._model = models[0]
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._closing.aclose()

    @property
    def model(self) -> str:
        assert self._model is not None, "the engine is used before it is entered"
        return self._model

    async def state(self) -> EngineState:
        """Raises EngineError when the engine has no SteerGuard plugin."""
        with _told(self.url):
            found: Any = await self._client.get("/steering", cast_to=object)
        try:
            return EngineState(
                model=str(found["model"]),
                num_layers=int(found["num_layers"]),
                hidden_size=int(found["hidden_size"]),
                norms={int(block): float(f"{norm:.{NORM_DIGITS}g}") for block, norm in found["norms"].items()},
                dose_ceiling=float(found["dose_ceiling"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"{self.url}: expected the state of the SteerGuard plugin, found {error!r}") from None

    async def register(self, vector: SteeringVector) -> bool:
        """Puts a vector on the engine; whether it wasn't there before."""
        with _told(self.url):
            answer: Any = await self._client.put(
                f"/steering/vectors/{vector.digest}",
                cast_to=object,
                content=write_vector(vector),
                options={"headers": {"Content-Type": "application/octet-stream"}},
            )
        return bool(answer["created"])

    async def remove(self, vector: SteeringVector) -> None:
        """Takes a vector off the engine."""
        with _told(self.url):
            await self._client.delete(f"/steering/vectors/{vector.digest}", cast_to=object)

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        blend: Blend = (),
        max_dose: float | None = None,
        wants_ids: bool = False,
    ) -> Answer:
        """One chat completion. `blend` and `wants_ids` need vLLM, the former with the plugin."""
        extra: dict[str, Any] = {"return_token_ids": True} if wants_ids else {}
        if blend:
            spec: dict[str, Any] = {"blend": list(blend)}
            if max_dose is not None:
                spec["max_dose"] = max_dose
            extra["vllm_xargs"] = {"steerguard": json.dumps(spec)}
        with _told(self.url):
            completion: Any = await self._client.chat.completions.create(
                model=self.model,
                messages=list(messages),  # type: ignore[arg-type]
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                extra_body=extra,
            )
        if not completion.choices:
            raise EngineError(f"{self.url}: expected an answer, found none")
        choice = completion.choices[0]
        text = choice.message.content or ""
        if not wants_ids:
            return Answer(text)
        # Fields that OpenAI's schema hasn't got arrive as extra attributes.
        prompt_ids, answer_ids = getattr(completion, "prompt_token_ids", None), getattr(choice, "token_ids", None)
        if not prompt_ids or not answer_ids:
            raise EngineError(f"{self.url}: expected token ids (vLLM's return_token_ids), found none")
        return Answer(text, tuple(prompt_ids), tuple(answer_ids))

    async def negative_log_likelihood(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> float:
        """Mean of -ln p(token) over the answer's tokens after the prompt, under the unsteered model, in nats."""
        ids = [*prompt_ids, *answer_ids]
        with _told(self.url):
            completion: Any = await self._client.completions.create(
                model=self.model, prompt=ids, max_tokens=1, temperature=0.0, extra_body={"prompt_logprobs": 0}
            )
        told = getattr(completion.choices[0], "prompt_logprobs", None)
        if not told or len(told) != len(ids):
            raise EngineError(f"{self.url}: expected a log-probability for each prompt token, found none")
        answered = list(zip(told, ids, strict=True))[len(prompt_ids) :]
        return -sum(float(entry[str(token)]["logprob"]) for entry, token in answered) / len(answered)


async def finish_all(
    work: Sequence[Coroutine[Any, Any, None]],
    *,
    concurrency: int,
    should_stop: ShouldStop | None = None,
    on_done: Callable[[int], None] | None = None,
) -> None:
    """Runs `work`, so much of it at once; `on_done` gets how many ended since it was last told.

    A piece of work that has begun goes before others, so that much is whole when the rest is broken off. The first
    error ends everything and is raised; so does `should_stop`, as Stopped.
    """
    free = asyncio.Semaphore(concurrency)

    async def finish(one: Coroutine[Any, Any, None]) -> None:
        async with free:
            await one

    pending = {asyncio.ensure_future(finish(one)) for one in work}
    try:
        while pending:
            stop_if(should_stop)
            done, pending = await asyncio.wait(pending, timeout=STOP_POLL_S, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            if on_done is not None and done:
                on_done(len(done))
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for one in work:
            one.close()  # what never began would be warned about


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turns the client's errors into EngineError with what the engine said."""
    try:
        yield
    except APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        said = str(body.get("message") or error.message)[:500]
        raise EngineError(f"{url}: HTTP {error.status_code}: {said}") from error
    except APIConnectionError as error:
        raise EngineError(f"{url}: can't be reached: {error.__cause__ or error}") from error
    except APIError as error:
        raise EngineError(f"{url}: {error}") from error


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
