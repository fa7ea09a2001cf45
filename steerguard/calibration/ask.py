"""Asks an engine everything that a calibration needs to know, all at once, and keeps each answer as it comes.

A condition is one way of asking; each prompt is answered under each, and the answer's likelihood under the unsteered
model is asked for at once. Everything is in flight together, so that hundreds of different strengths share the engine's
batches, which is what steering per request is for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steerguard.calibration.sweep import Point
from steerguard.extraction.engine import Engine, EngineState, Message, finish_all
from steerguard.extraction.journal import Journal, digest_of
from steerguard.extraction.progress import ShouldStop
from steerguard.vectors import SteeringVector

DOSE_SLACK = 1.01
"""The engine counts the dose itself, from its own rounding: a limit this much above it doesn't refuse it."""


@dataclass(frozen=True)
class Condition:
    """One way of asking: with a vector at a point, or with a system prompt, or plainly."""

    name: str
    point: Point | None = None
    vectors: tuple[SteeringVector, ...] = ()
    """Prompts take turns with these; one vector is for all of them."""
    system: str = ""


@dataclass(frozen=True)
class Said:
    """An answer as it is analysed."""

    text: str
    answer_ids: tuple[int, ...]
    nll: float
    """Mean -ln p of its tokens under the unsteered model after the plain prompt."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. Greedy (temperature 0) is the default: a seed then changes nothing."""

    max_tokens: int = 48
    temperature: float = 0.0
    seed: int = 0
    positions: str = "all"


class Asker:
    """Questions to one engine, answered from the journal where it has them."""

    def __init__(self, engine: Engine, state: EngineState, sampling: Sampling, journal: Journal) -> None:
        self._engine = engine
        self._state = state
        self._sampling = sampling
        self._journal = journal
        self._plain_ids: dict[str, tuple[int, ...]] = {}

    async def ask_plainly(self, prompts: Sequence[str], **run: Any) -> list[Said]:
        """The unsteered answers. They come first: their prompts' tokens are what every answer is judged after."""
        return (await self.ask_all([Condition("unsteered")], prompts, **run))[0]

    async def ask_all(
        self,
        conditions: Sequence[Condition],
        prompts: Sequence[str],
        *,
        should_stop: ShouldStop | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Said]]:
        """By condition and prompt. Raises EngineError, Stopped."""
        found: dict[tuple[int, int], Said] = {}

        async def ask(row: int, column: int) -> None:
            found[row, column] = await self._ask(conditions[row], prompts[column], column)

        places = [(row, column) for row in range(len(conditions)) for column in range(len(prompts))]
        await finish_all(
            [ask(*place) for place in places],
            concurrency=self._engine.concurrency,
            should_stop=should_stop,
            on_done=on_progress,
        )
        return [[found[row, column] for column in range(len(prompts))] for row in range(len(conditions))]

    async def _ask(self, condition: Condition, prompt: str, column: int) -> Said:
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if condition.system:
            messages.insert(0, {"role": "system", "content": condition.system})
        sampling = self._sampling
        asked = {
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed + column,
            "blend": self._blend(condition, column),
        }
        key = digest_of([self._engine.model, dict(self._norms()), messages, asked])
        kept = self._journal.get(key)
        if kept is None:
            kept = await self._ask_engine(condition, prompt, messages, asked)
            self._journal.put(key, kept)
        if condition.name == "unsteered":
            self._plain_ids[prompt] = tuple(kept["prompt_ids"])
        return Said(kept["text"], tuple(kept["answer_ids"]), kept["nll"])

    async def _ask_engine(
        self, condition: Condition, prompt: str, messages: Sequence[Message], asked: Mapping[str, Any]
    ) -> dict[str, Any]:
        max_dose = None
        if condition.point is not None:
            max_dose = min(condition.point.dose * DOSE_SLACK, self._state.dose_ceiling)
        answer = await self._engine.ask(messages, **asked, max_dose=max_dose, wants_ids=True)
        plain_ids = answer.prompt_ids if condition.name == "unsteered" else self._plain_ids[prompt]
        nll = await self._engine.negative_log_likelihood(plain_ids, answer.answer_ids)
        return {"text": answer.text, "prompt_ids": answer.prompt_ids, "answer_ids": answer.answer_ids, "nll": nll}

    def _norms(self) -> dict[str, float]:
        """Tell one model from another that is served under the same name."""
        return {str(block): norm for block, norm in self._state.norms.items()}

    def _blend(self, condition: Condition, column: int) -> list[dict[str, Any]]:
        if condition.point is None:
            return []
        vector = condition.vectors[column % len(condition.vectors)]
        return [
            {
                "vector": vector.digest,
                "alpha": condition.point.alpha,
                "positions": self._sampling.positions,
                "layers": list(condition.point.layers),
            }
        ]


def open_journal(work: Path | None) -> Journal:
    """The answers kept in a work folder; in memory without one."""
    return Journal(work / "answers.jsonl" if work is not None else None)
