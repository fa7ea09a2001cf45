"""Why a change is refused: one exception class per kind of refusal, each saying which field, what was
expected there and what was found. Whoever answers people (a page, the API, a command) turns it into words."""

from collections.abc import Sequence
from dataclasses import dataclass


class Refusal(Exception):
    """A change that is not made because of what was asked. Safe to show to whoever asked for it."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found


class InvalidField(Refusal):
    """A plain field (a name, a description) breaks its rule."""


class InvalidSlug(Refusal):
    """A tenant, persona or vector name that can't be part of a model name."""


class NameTaken(Refusal):
    """Something of that name is already there."""


class TooMany(Refusal):
    """A tenant has as many of these as it may have."""


class UnknownUser(Refusal):
    """No such person, or not a member."""


class LastOwner(Refusal):
    """A tenant keeps at least one owner."""


class InvalidExpiry(Refusal):
    """A key can't expire in the past."""


class UnknownVector(Refusal):
    """No such vector for this tenant; another tenant's reads exactly the same."""


class InvalidVectorFile(Refusal):
    """The file is no vector, or none for the model that was named."""


class UnclearVectorFile(Refusal):
    """The file leaves open what `field` has to say: which block its one vector belongs to, which tool wrote it."""


class ImportsBusy(Refusal):
    """As many files are being read as may be at once."""


class VectorInUse(Refusal):
    """Drafts or revisions are made of it."""


class UnknownRevision(Refusal):
    """The persona has no revision of that number."""


class RevisionIsImmutable(Refusal):
    """Revisions are written once: requests were served by them and are logged with them."""

    def __init__(self) -> None:
        super().__init__("revision", "a new revision", "a change to an existing one")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a definition; `field` is a path such as `blend[1].alpha`."""

    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


class InvalidDefinition(Refusal):
    """A persona definition with one or more problems; the first one gives the message its fields."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        first = problems[0]
        super().__init__(first.field, first.expected, first.found)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)


class InvalidManifest(InvalidDefinition):
    """A YAML file of personas with one or more problems, each of which names the persona and the field."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.file = file

    def __str__(self) -> str:
        return "\n".join(f"{self.file}: {problem}" for problem in self.problems)


class InvalidAdapter(InvalidDefinition):
    """An upload that isn't an adapter which can be served on the base model, with every problem by field."""


class NoBaseModel(Refusal):
    """There is no base model on this server that an adapter could be checked against."""
