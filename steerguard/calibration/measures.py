"""Measures of behavior: numbers that a kept library, or a rule anybody can check, gives an answer.

A measure is asked for by name, with what it needs to know after a colon: `sentiment`, `sentiment:lower`, `language:fr`,
`words:lower`, `json`, `lix`. `add_measure` makes others known.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

Better = Literal["higher", "lower"]
Exchange = tuple[str, str]
"""Prompt and answer."""


@dataclass(frozen=True)
class Measure:
    """One number for each answer, and which way the behavior lies."""

    name: str
    better: Better
    unit: str
    source: str
    """What computes it, with its version."""
    score: Callable[[Sequence[Exchange]], Sequence[float]]

    @property
    def sign(self) -> float:
        """1 where more is more of the behavior, else -1."""
        return 1.0 if self.better == "higher" else -1.0


class MeasureError(ValueError):
    """A measure that there isn't, or that needs to know something else."""


Maker = Callable[[str], Measure]
"""Makes a measure from what follows the colon; empty when nothing does."""

_makers: dict[str, Maker] = {}


def add_measure(name: str, maker: Maker) -> None:
    """Makes `name` known to `find_measure`. Raises ValueError when it is taken."""
    if name in _makers:
        raise ValueError(f"measure {name!r}: expected a name that isn't taken")
    _makers[name] = maker


def measure_names() -> list[str]:
    return sorted(_makers)


def find_measure(asked: str) -> Measure:
    """The measure called `name` or `name:detail`. Raises MeasureError."""
    name, _, detail = asked.partition(":")
    if name not in _makers:
        raise MeasureError(f"measure: expected one of {', '.join(measure_names())}, found {name!r}")
    return _makers[name](detail)


def _each(score: Callable[[str], float]) -> Callable[[Sequence[Exchange]], list[float]]:
    return lambda exchanges: [score(text) for _, text in exchanges]


def _direction(name: str, detail: str) -> Better:
    if detail in ("", "higher"):
        return "higher"
    if detail == "lower":
        return "lower"
    raise MeasureError(f"measure {name}: expected higher or lower after the colon, found {detail!r}")


def _sentiment(detail: str) -> Measure:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()
    return Measure(
        name="sentiment",
        better=_direction("sentiment", detail),
        unit="VADER compound, -1 to 1",
        source=f"vaderSentiment {version('vaderSentiment')}",
        score=_each(lambda text: float(analyzer.polarity_scores(text)["compound"])),
    )


def _language(detail: str) -> Measure:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    if detail not in identifier.labels:
        raise MeasureError(f"measure language: expected a code such as language:fr, found {detail!r}")
    return Measure(
        name=f"language:{detail}",
        better="higher",
        unit="probability, 0 to 1",
        source=f"py3langid {version('py3langid')}",
        score=_each(lambda text: float(dict(identifier.rank(text))[detail])),
    )


def _words(detail: str) -> Measure:
    return Measure(
        name="words",
        better=_direction("words", detail),
        unit="words between white space",
        source="counted",
        score=_each(lambda text: float(len(text.split()))),
    )


def _json(detail: str) -> Measure:
    return Measure(
        name="json",
        better=_direction("json", detail),
        unit="1 if the answer is a JSON object or array and nothing else",
        source="Python's json",
        score=_each(_is_json),
    )


def _is_json(text: str) -> float:
    try:
        return float(isinstance(json.loads(text), dict | list))
    except (ValueError, RecursionError):
        return 0.0


def _lix(detail: str) -> Measure:
    """LIX (Björnsson 1968): words per sentence, and the percentage of words longer than six letters.

    Of textstat's measures it is one that needs no pronouncing dictionary, which textstat would download.
    """
    import textstat

    return Measure(
        name="lix",
        better=_direction("lix", detail),
        unit="LIX; below 30 is easy, above 50 hard to read",
        source=f"textstat {version('textstat')}",
        score=_each(lambda text: float(textstat.lix(text)) if text.strip() else 0.0),
    )


for _name, _maker in (
    ("sentiment", _sentiment),
    ("language", _language),
    ("words", _words),
    ("json", _json),
    ("lix", _lix),
):
    add_measure(_name, _maker)
