"""How strong a vector may be, measured on the engine that will serve it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from steerguard.calibration.analysis import RESAMPLES, Analysis, Answers, by_layer_set
from steerguard.calibration.ask import Asker, Condition, Said, Sampling, open_journal
from steerguard.calibration.damage import COLLAPSE, Limits
from steerguard.calibration.measures import Measure
from steerguard.calibration.result import Calibration, MeasureInfo
from steerguard.calibration.sweep import (
    DOSES,
    LayerSet,
    Point,
    choose_layer_sets,
    plan_points,
    random_directions,
)
from steerguard.extraction.engine import Engine, EngineError, EngineState
from steerguard.extraction.progress import ShouldStop
from steerguard.vectors import SteeringVector

MIN_PROMPTS = 4


class _Told:
    """Progress as a running count of a total that is known from the start."""

    def __init__(self, on_progress: Callable[[int, int], None] | None, total: int) -> None:
        self._on_progress, self._total, self._done = on_progress, total, 0

    def add(self, count: int) -> None:
        self._done += count
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def calibrate(
    vector: SteeringVector,
    engine: Engine,
    *,
    prompts: Sequence[str],
    measures: Sequence[Measure],
    layer_sets: Sequence[LayerSet] | None = None,
    doses: Sequence[float] = DOSES,
    instruction: str = "",
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    seed: int = 0,
    work: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    should_stop: ShouldStop | None = None,
) -> Calibration:
    """Sweeps sets of the vector's blocks and doses, and says which to use and where harm begins.

    `prompts` should be none that the vector was made from; the first of `measures` decides. `instruction` is a system
    prompt that asks for the behavior, to compare with. The engine (not entered yet) holds the vector and some random
    ones meanwhile; those that were not there before are taken off again. Answers are kept in `work`, and a later call
    asks only for what is missing. `on_progress` gets answers done and answers in all. Raises ValueError for what can't
    be swept, EngineError, Stopped.
    """
    if len(set(prompts)) < MIN_PROMPTS or len(set(prompts)) != len(prompts):
        raise ValueError(f"prompts: expected at least {MIN_PROMPTS}, each once, found {len(set(prompts))} different")
    if not measures:
        raise ValueError("measures: expected at least one, found none")
    if len({measure.name for measure in measures}) != len(measures):
        raise ValueError(f"measures: expected each once, found {[measure.name for measure in measures]}")
    sampling, limits = sampling or Sampling(seed=seed), limits or Limits()
    randoms = random_directions(vector, seed=seed)

    async def ask() -> tuple[list[Point], list[list[Said]]]:
        journal = open_journal(work)
        try:
            async with engine:
                state = await engine.state()
                _check_engine(vector, state)
                sets = layer_sets if layer_sets is not None else choose_layer_sets(vector, state.num_layers)
                points = plan_points(vector, layer_sets=sets, doses=doses, norms=state.norms)
                _check_doses(points, state)
                conditions = _conditions(vector, randoms, points, instruction)
                told = _Told(on_progress, len(prompts) * (1 + len(conditions)))
                asker = Asker(engine, state, sampling, journal)
                fresh = [one for one in (vector, *randoms) if await engine.register(one)]
                try:
                    plain = await asker.ask_plainly(prompts, should_stop=should_stop, on_progress=told.add)
                    rest = await asker.ask_all(conditions, prompts, should_stop=should_stop, on_progress=told.add)
                finally:
                    await _take_off(engine, fresh)
                return points, [plain, *rest]
        finally:
            journal.close()

    points, said = asyncio.run(ask())
    unsteered, *answers = _scored(said, prompts, measures)
    analysis = Analysis(unsteered, measures, limits=limits, seed=seed)
    instructed = analysis.baseline(answers.pop(0)) if instruction else None
    steered, random = answers[: len(points)], answers[len(points) :]
    results = [analysis.point(*one) for one in zip(points, steered, random, strict=True)]
    return Calibration(
        format="steerguard.calibration.v1",
        vector=vector.digest,
        base_model=vector.base_model,
        positions=sampling.positions,
        measures=tuple(MeasureInfo(one.name, one.better, one.unit, one.source) for one in measures),
        settings={
            **asdict(sampling),
            "seed": seed,
            "instruction": instruction,
            "limits": asdict(limits),
            "collapse": COLLAPSE,
            "resamples": RESAMPLES,
            "random_directions": len(randoms),
        },
        prompts=tuple(prompts),
        unsteered_perplexity=analysis.unsteered_perplexity(),
        unsteered=analysis.baseline(unsteered),
        instructed=instructed,
        points=tuple(results),
        windows=tuple(
            analysis.window([results[index] for index in indexes], [steered[index] for index in indexes])
            for indexes in by_layer_set(points).values()
        ),
        recommendation=analysis.recommend(results, steered),
    )


def _check_engine(vector: SteeringVector, state: EngineState) -> None:
    if vector.hidden_size != state.hidden_size:
        raise ValueError(f"vector: expected hidden size {state.hidden_size}, the engine's, found {vector.hidden_size}")
    if max(vector.layers) >= state.num_layers:
        raise ValueError(f"vector: expected blocks below {state.num_layers}, the engine's, found {max(vector.layers)}")


def _check_doses(points: Sequence[Point], state: EngineState) -> None:
    highest = max(point.dose for point in points)
    if highest > state.dose_ceiling:
        raise ValueError(f"doses: expected at most {state.dose_ceiling:g}, the engine's ceiling, found {highest:g}")


def _conditions(
    vector: SteeringVector, randoms: Sequence[SteeringVector], points: Sequence[Point], instruction: str
) -> list[Condition]:
    """Everything but the unsteered answers: instructed ones if asked for, then steered, then random directions."""
    conditions = [Condition("instructed", system=instruction)] if instruction else []
    conditions += [Condition("steered", point, (vector,)) for point in points]
    conditions += [Condition("random", point, tuple(randoms)) for point in points]
    return conditions


async def _take_off(engine: Engine, vectors: Sequence[SteeringVector]) -> None:
    """Leaves the engine as it was. A vector whose last answer was just broken off is still in use for a moment."""
    for vector in vectors:
        for attempt in range(5):
            try:
                await engine.remove(vector)
                break
            except EngineError:
                if attempt == 4:
                    return  # it does no harm there, and what went wrong before is what should be told
                await asyncio.sleep(0.5)


def _scored(said: Sequence[Sequence[Said]], prompts: Sequence[str], measures: Sequence[Measure]) -> list[Answers]:
    """Each condition's answers with their scores. A measure gets all answers at once: it may read them in batches."""
    flat = [(prompt, one.text) for row in said for prompt, one in zip(prompts, row, strict=True)]
    scores = {measure.name: list(measure.score(flat)) for measure in measures}
    width = len(prompts)
    return [
        Answers(row, {name: values[at * width : (at + 1) * width] for name, values in scores.items()})
        for at, row in enumerate(said)
    ]
