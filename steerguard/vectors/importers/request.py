"""What whoever imports a file says about it, what an importer finds in it, and the question that is left open."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from steerguard.vectors.vector import MAX_BLOCK_INDEX, MAX_HIDDEN_SIZE, FloatArray, VectorError

CONVENTIONS = {
    "index": ("measured", "applied"),
    "rows": ("blocks", "hidden_states"),
    "zero_rows": ("refuse", "skip"),
}
"""The values of each convention that a file leaves open; docs/vectors.md says what they mean."""


class Unanswered(Exception):
    """The file leaves something open that only its owner knows: which argument says it, what it may be, and why."""

    def __init__(self, field: str, choices: str, why: str) -> None:
        super().__init__(f"{field}: needed ({choices}), because {why}")
        self.field = field
        self.choices = choices
        self.why = why


@dataclass(frozen=True)
class ImportRequest:
    """What a file can't say itself, or may be wrong about. Raises VectorError.

    `hidden_size` and `num_layers` (decoder blocks) are the model's. `layer` is the 0-based block of a file that
    holds one vector and no layer. The rest are conventions, each with its default in CONVENTIONS' first place where
    there is one: `index`, of llama.cpp's files; `rows`, of matrices whose format doesn't say; `zero_rows`.
    """

    hidden_size: int | None = None
    num_layers: int | None = None
    format: str | None = None
    layer: int | None = None
    index: str = "measured"
    rows: str | None = None
    zero_rows: str = "refuse"
    base_model: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        _check("hidden_size", self.hidden_size, 1, MAX_HIDDEN_SIZE)
        _check("num_layers", self.num_layers, 1, MAX_BLOCK_INDEX + 1)
        _check("layer", self.layer, 0, (self.num_layers or MAX_BLOCK_INDEX + 1) - 1)
        for convention, choices in CONVENTIONS.items():
            said = getattr(self, convention)
            if said not in choices and not (said is None and convention == "rows"):
                raise VectorError(convention, " or ".join(choices), repr(said)[:80])

    def model(self) -> tuple[int, int]:
        """`hidden_size` and `num_layers`, which every foreign file is held against. Raises Unanswered."""
        if self.hidden_size is None:
            raise Unanswered("hidden_size", "the model's", "the vector's width is held against it")
        if self.num_layers is None:
            raise Unanswered("num_layers", "the model's decoder blocks", "the file's layers are held against it")
        return self.hidden_size, self.num_layers

    def place(self) -> int:
        """The block of a vector that comes without one. Raises Unanswered."""
        _, num_layers = self.model()
        if self.layer is None:
            raise Unanswered(
                "layer", f"a 0-based block, 0 to {num_layers - 1}", "the file holds one vector and says no layer"
            )
        return self.layer


@dataclass(frozen=True)
class Found:
    """What an importer makes of a file: a vector per block, and which reading of the file that is."""

    layers: dict[int, FloatArray]
    convention: str
    """One sentence: how the file's numbers became blocks."""
    warnings: Sequence[str] = ()
    provenance: dict[str, str] = field(default_factory=dict)


def _check(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and (type(value) is not int or not low <= value <= high):
        raise VectorError(name, f"a whole number from {low} to {high}", repr(value)[:80])
