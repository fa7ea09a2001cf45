"""Pairs that the model writes itself: each question answered under a system prompt with the behavior, and under one
with its opposite.

The vector is then read without the system prompts: what is left of them in the answers is what steering should bring
about. (Chen et al., arXiv 2507.21509, make persona vectors so, and read them with the prompts in place.)
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steerguard.extraction.engine import Engine, finish_all
from steerguard.extraction.journal import Journal, digest_of
from steerguard.extraction.pairs import Pair
from steerguard.extraction.progress import ShouldStop

MAX_TOKENS = 96
TEMPERATURE = 0.7


@dataclass(frozen=True)
class GeneratedPairs:
    """The pairs, and the questions that gave none because an answer was empty or both were the same."""

    pairs: tuple[Pair, ...]
    unusable: tuple[str, ...]


def generate_pairs(
    engine: Engine,
    questions: Sequence[str],
    *,
    positive_system: str,
    negative_system: str,
    max_tokens: int = MAX_TOKENS,
    temperature: float = TEMPERATURE,
    seed: int = 0,
    work: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> GeneratedPairs:
    """Two answers to each question, all in flight at once as far as the engine's `concurrency` goes.

    The engine must not have been entered. Answers are kept in `work`/answers.jsonl; `on_progress` gets how many came
    since it was last told. Raises ValueError unless both system prompts say something, and different things;
    EngineError; Stopped.
    """
    for field, text in (("positive_system", positive_system), ("negative_system", negative_system)):
        if not text.strip():
            raise ValueError(f"{field}: expected text, found only spaces")
    if positive_system == negative_system:
        raise ValueError("negative_system: expected a prompt unlike positive_system, found the same")
    systems = (positive_system, negative_system)
    answers: dict[tuple[str, str], str] = {}

    async def answer(system: str, question: str, number: int, journal: Journal) -> None:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        # Questions differ in seed, so that the sampling noise of one isn't that of all.
        asked = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed + number}
        key = digest_of([engine.model, messages, asked])
        text = journal.get(key)
        if text is None:
            found = await engine.ask(messages, max_tokens=max_tokens, temperature=temperature, seed=seed + number)
            text = found.text
            journal.put(key, text)
        answers[system, question] = text

    async def answer_all() -> None:
        journal = Journal(work / "answers.jsonl" if work is not None else None)
        try:
            async with engine:
                numbered = list(enumerate(questions))
                work_list = [answer(system, question, n, journal) for n, question in numbered for system in systems]
                await finish_all(
                    work_list, concurrency=engine.concurrency, should_stop=should_stop, on_done=on_progress
                )
        finally:
            journal.close()

    asyncio.run(answer_all())
    pairs, unusable = [], []
    for question in questions:
        positive, negative = (answers[system, question].strip() for system in systems)
        if positive and negative and positive != negative:
            pairs.append(Pair(question, positive, negative))
        else:
            unusable.append(question)
    return GeneratedPairs(tuple(pairs), tuple(unusable))
