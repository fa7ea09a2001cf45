"""The charts of the vector page, as coordinates: templates draw them, and show the same numbers as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from personas.vector_similarity import Comparison

BAR_PX, GAP_PX, HEIGHT_PX = 16, 6, 140
AXIS_PX, LABEL_PX, TOP_PX = 44, 20, 8


@dataclass(frozen=True)
class Bar:
    """A block's bar, in pixels from the top left, and what it stands for."""

    block: int
    norm: float
    x: int
    y: float
    height: float
    label_x: float
    is_labelled: bool


@dataclass(frozen=True)
class NormChart:
    """The norm of each block's array as bars."""

    width: int
    height: int
    bar_width: int
    baseline: int
    label_y: int
    axis_x: int
    bars: Sequence[Bar]
    ticks: Sequence[tuple[float, str]]
    """Height and text of the lines across."""


def norm_chart(norms: Mapping[int, float]) -> NormChart:
    """`norms` by block, none negative; not all of them zero."""
    highest = max(norms.values())
    scale = HEIGHT_PX / highest
    baseline = TOP_PX + HEIGHT_PX
    step = BAR_PX + GAP_PX
    every = 1 if len(norms) <= 40 else 4
    bars = []
    for place, (block, norm) in enumerate(norms.items()):
        x = AXIS_PX + GAP_PX + place * step
        height = round(norm * scale, 1)
        bars.append(Bar(block, norm, x, round(baseline - height, 1), height, x + BAR_PX / 2, place % every == 0))
    ticks = [(round(baseline - part * HEIGHT_PX, 1), _short(part * highest)) for part in (0, 0.5, 1)]
    width = AXIS_PX + 2 * GAP_PX + len(norms) * step
    return NormChart(width, baseline + LABEL_PX, BAR_PX, baseline, baseline + LABEL_PX - 5, AXIS_PX, bars, ticks)


@dataclass(frozen=True)
class Cell:
    """A cosine, as text and as a level from -10 to 10 that the style sheet has a color for."""

    text: str
    level: int | None


@dataclass(frozen=True)
class HeatRow:
    comparison: Comparison
    cells: Sequence[Cell]


def heat_rows(comparisons: Sequence[Comparison], blocks: Sequence[int]) -> list[HeatRow]:
    """A row per other vector, a cell per block; a block that the other hasn't got has an empty one."""
    return [HeatRow(one, [_cell(one.cosines.get(block)) for block in blocks]) for one in comparisons]


def _cell(cosine: float | None) -> Cell:
    if cosine is None:
        return Cell("", None)
    text = f"{cosine:.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
    return Cell(text, round(cosine * 10))


def _short(value: float) -> str:
    return f"{value:.3g}"
