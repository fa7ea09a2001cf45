"""What is wrong with an adapter: a list of fields, each with what was expected there and what was found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_PROBLEMS = 100
MAX_TEXT_CHARS = 300


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `field` is a setting of adapter_config.json, a tensor's name, or a file."""

    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"

    def as_json(self) -> dict[str, str]:
        return {"field": self.field, "expected": self.expected, "found": self.found}


class Problems:
    """Collects problems. The first MAX_PROBLEMS are kept, the rest counted: one wrong base is wrong everywhere."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._more = 0

    def add(self, field: str, expected: str, found: object) -> None:
        if len(self._kept) < MAX_PROBLEMS:
            self._kept.append(Problem(shorten(field), shorten(expected), shorten(found)))
        else:
            self._more += 1

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.add(problem.field, problem.expected, problem.found)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def listed(self) -> list[Problem]:
        """What was kept and, where there was more, how much."""
        if not self._more:
            return list(self._kept)
        rest = Problem("problems", f"at most {MAX_PROBLEMS} to list", f"{self._more} more of them")
        return [*self._kept, rest]

    def raise_if_any(self) -> None:
        """Raises AdapterError."""
        if self._kept:
            raise AdapterError(self.listed())


class AdapterError(ValueError):
    """Something that claims to be an adapter (or the base to check it against) isn't one that can be served."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["AdapterError"], tuple[tuple[Problem, ...]]]:
        return AdapterError, (self.problems,)


def refusal(field: str, expected: str, found: object) -> AdapterError:
    """An error of one problem."""
    return AdapterError([Problem(shorten(field), shorten(expected), shorten(found))])


def shorten(value: object) -> str:
    """Text that fits into a message and that UTF-8 can hold, whatever an upload is made of."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[: MAX_TEXT_CHARS + 1])
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
