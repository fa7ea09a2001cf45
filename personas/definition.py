"""What a persona does, as data: the one place that reads and checks a definition.

A definition is JSON (in a draft, a revision, an API body). `parse_definition` checks everything that can be
known from the JSON alone and reports every bad field at once; `find_vectors` checks the digests against what
the tenant may use. The gateway reads stored revisions with the same parser, without a database.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any, Literal, cast, get_args

from personas.characters import UNSTORABLE
from personas.errors import InvalidDefinition, Problem
from personas.models import DIGEST_PATTERN, SteeringVector, Tenant

PositionsName = Literal["all", "prompt", "response"]

MAX_COMPONENTS = 16
MAX_ALPHA = 10_000.0  # unit vectors against residual norms of several hundred need large ones
MAX_DOSE = 1_000.0
MAX_BLOCK_INDEX = 1_023
MAX_SYSTEM_PROMPT_CHARS = 32_000
MAX_STOPS = 16
MAX_STOP_CHARS = 200
MAX_TOKENS = 1_000_000
MAX_OUTPUT_FORMAT_CHARS = 64_000
MAX_SKILL_CHARS = 63
MAX_FOUND_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class BlendComponent:
    """One vector of a blend: `alpha` times it is added at `positions`, on `layers` (None: all it has)."""

    vector: str
    skill: str = ""
    alpha: float = 1.0
    positions: PositionsName = "all"
    layers: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Defaults for a request's sampling parameters, under their OpenAI and vLLM names; None: the engine's."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """Only what is set, ready to be merged under a request's own parameters."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }


LOCKABLE = (
    *(field.name for field in dataclass_fields(Sampling)),
    "response_format",
    "steer_skill",
    "system",
    "tools",
)
"""Fields of a request that an owner may lock; `system` stands for messages of that role."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A whole persona. The default does nothing: no vectors, no system prompt, the engine's own sampling."""

    blend: tuple[BlendComponent, ...] = ()
    system_prompt: str = ""
    sampling: Sampling = Sampling()
    output_format: Mapping[str, Any] | None = None
    max_dose: float | None = None
    locked: tuple[str, ...] = ()
    """The request fields (of LOCKABLE) that only the persona sets."""
    adapter: None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON that parse_definition reads back into an equal definition."""
        return {
            "blend": [
                {**asdict(component), "layers": list(component.layers) if component.layers else None}
                for component in self.blend
            ],
            "system_prompt": self.system_prompt,
            "sampling": self.sampling.as_json(),
            "output_format": None if self.output_format is None else dict(self.output_format),
            "max_dose": self.max_dose,
            "locked": list(self.locked),
            "adapter": self.adapter,
        }


def parse_definition(data: object) -> Definition:
    """The definition in `data`, with defaults for what is left out. Raises InvalidDefinition."""
    problems: list[Problem] = []
    parts = Field("", data, problems).parts(_names(Definition))
    definition = Definition(
        blend=tuple(_parse_component(item) for item in parts["blend"].items(MAX_COMPONENTS)),
        system_prompt=parts["system_prompt"].text("", MAX_SYSTEM_PROMPT_CHARS),
        sampling=_parse_sampling(parts["sampling"]),
        output_format=_parse_output_format(parts["output_format"]),
        max_dose=parts["max_dose"].optional_number(low=0, high=MAX_DOSE, exclude_low=True),
        locked=_parse_locked(parts["locked"]),
    )
    if parts["adapter"].value is not None:
        parts["adapter"].refuse("null (adapters are not served yet)")
    if problems:
        raise InvalidDefinition(problems)
    return definition


def find_vectors(definition: Definition, tenant: Tenant) -> list[SteeringVector]:
    """The vectors of the blend, in its order. Raises InvalidDefinition with every problem.

    They have to be the tenant's own or shared, to steer layers they have, and to be made for one model.
    Another tenant's digest is reported in the very words that a digest nobody has is reported in.
    """
    usable = SteeringVector.objects.usable_by(tenant)
    wanted = {component.vector for component in definition.blend}
    # Where a tenant has a row of its own for a shared vector, its own goes last and wins.
    found = {vector.digest: vector for vector in usable.filter(digest__in=wanted, tenant=None)}
    found |= {vector.digest: vector for vector in usable.filter(digest__in=wanted, tenant=tenant)}
    problems: list[Problem] = []
    vectors: list[SteeringVector] = []
    for index, component in enumerate(definition.blend):
        path = f"blend[{index}]"
        vector = found.get(component.vector)
        if vector is None:
            expected = "the digest of one of the tenant's vectors or of a shared one"
            problems.append(Problem(f"{path}.vector", expected, component.vector))
            continue
        missing = sorted(set(component.layers or ()) - set(vector.layers))
        if missing:
            expected = f"layers that {vector.name} has, which are {_shorten(vector.layers)}"
            problems.append(Problem(f"{path}.layers", expected, _shorten(missing)))
        if vectors and _made_for(vector) != _made_for(vectors[0]):
            expected = f"a vector for {_made_for(vectors[0])}, like the others"
            problems.append(Problem(f"{path}.vector", expected, f"one for {_made_for(vector)}"))
        vectors.append(vector)
    if problems:
        raise InvalidDefinition(problems)
    return vectors


def name_skills(definition: Definition, vectors: Iterable[SteeringVector]) -> Definition:
    """`definition` with each component's skill set to what its vector (from find_vectors) is called."""
    named = zip(definition.blend, vectors, strict=True)
    return replace(definition, blend=tuple(replace(component, skill=vector.name) for component, vector in named))


def _made_for(vector: SteeringVector) -> str:
    return f"{vector.base_model} with hidden size {vector.hidden_size}"


@dataclass(frozen=True)
class Field:
    """A value at a path of the JSON. A reader that finds a problem notes it and goes on with the default."""

    path: str
    value: Any
    problems: list[Problem]
    given: bool = True

    def refuse(self, expected: str) -> None:
        found = _shorten(self.value) if self.given else "nothing"
        self.problems.append(Problem(self.path or "definition", expected, found))

    def parts(self, names: list[str]) -> "dict[str, Field]":
        """The members of an object in which only `names` may occur."""
        value = self.value if self.given else {}
        if not isinstance(value, Mapping):
            self.refuse("an object")
            value = {}
        prefix = f"{self.path}." if self.path else ""
        for name in sorted(value.keys() - set(names), key=str):
            unknown = Field(f"{prefix}{name}"[:MAX_FOUND_CHARS], value[name], self.problems)
            unknown.refuse(f"only the fields {', '.join(names)}")
        return {name: Field(f"{prefix}{name}", value.get(name), self.problems, given=name in value) for name in names}

    def items(self, at_most: int) -> "list[Field]":
        """The members of a list."""
        if not self.given:
            return []
        if not isinstance(self.value, list | tuple) or len(self.value) > at_most:
            self.refuse(f"a list of at most {at_most}")
            return []
        return [Field(f"{self.path}[{index}]", item, self.problems) for index, item in enumerate(self.value)]

    def text(self, default: str, max_chars: int) -> str:
        if not self.given or self.is_text(max_chars):
            return self.value if self.given else default
        self.refuse(f"text of at most {max_chars} characters")
        return default

    def is_text(self, max_chars: int) -> bool:
        return isinstance(self.value, str) and len(self.value) <= max_chars and not UNSTORABLE.search(self.value)

    def number(self, default: float, *, low: float, high: float) -> float:
        """A finite number. Null is refused: it is what JavaScript writes for NaN."""
        if not self.given:
            return default
        # The comparisons are false for NaN, and right for integers too large for a float.
        if self._is_a(int | float) and low <= self.value <= high:
            return float(self.value)
        self.refuse(f"a number from {low:g} to {high:g}")
        return default

    def optional_number(self, *, low: float, high: float, exclude_low: bool = False) -> float | None:
        """A finite number; None when left out or null."""
        if self.value is None:
            return None
        if self._is_a(int | float) and low <= self.value <= high and not (exclude_low and self.value == low):
            return float(self.value)
        self.refuse(f"a number {'above' if exclude_low else 'from'} {low:g} up to {high:g}, or null")
        return None

    def optional_integer(self, *, low: int, high: int) -> int | None:
        """An integer; None when left out or null."""
        if self.value is None:
            return None
        if self._is_a(int) and low <= self.value <= high:
            return int(self.value)
        self.refuse(f"an integer from {low} to {high}, or null")
        return None

    def _is_a(self, kind: Any) -> bool:
        return isinstance(self.value, kind) and not isinstance(self.value, bool)


def _parse_component(item: Field) -> BlendComponent:
    parts = item.parts(_names(BlendComponent))
    vector = parts["vector"]
    if not isinstance(vector.value, str) or not re.match(DIGEST_PATTERN, vector.value):
        vector.refuse("the 64 hexadecimal digits of a vector's digest")
    positions = parts["positions"]
    if positions.given and (not isinstance(positions.value, str) or positions.value not in get_args(PositionsName)):
        positions.refuse("all, prompt or response")
    return BlendComponent(
        vector=str(vector.value),
        skill=parts["skill"].text("", MAX_SKILL_CHARS),
        alpha=parts["alpha"].number(1.0, low=-MAX_ALPHA, high=MAX_ALPHA),
        positions=cast(PositionsName, positions.value) if positions.given else "all",
        layers=_parse_layers(parts["layers"]),
    )


def _parse_layers(field: Field) -> tuple[int, ...] | None:
    if field.value is None:
        return None
    is_block = [
        isinstance(index, int) and not isinstance(index, bool) and 0 <= index <= MAX_BLOCK_INDEX
        for index in (field.value if isinstance(field.value, list | tuple) else ())
    ]
    if not is_block or not all(is_block) or len(set(field.value)) < len(field.value):
        field.refuse("a list of different 0-based block indices, at least one, or null for all layers")
        return None
    return tuple(sorted(field.value))


def _parse_sampling(field: Field) -> Sampling:
    parts = field.parts(_names(Sampling))
    return Sampling(
        temperature=parts["temperature"].optional_number(low=0, high=2),
        top_p=parts["top_p"].optional_number(low=0, high=1, exclude_low=True),
        top_k=parts["top_k"].optional_integer(low=-1, high=MAX_TOKENS),
        min_p=parts["min_p"].optional_number(low=0, high=1),
        max_tokens=parts["max_tokens"].optional_integer(low=1, high=MAX_TOKENS),
        presence_penalty=parts["presence_penalty"].optional_number(low=-2, high=2),
        frequency_penalty=parts["frequency_penalty"].optional_number(low=-2, high=2),
        repetition_penalty=parts["repetition_penalty"].optional_number(low=0, high=2, exclude_low=True),
        seed=parts["seed"].optional_integer(low=-(2**63), high=2**63 - 1),
        stop=_parse_stop(parts["stop"]),
    )


def _parse_stop(field: Field) -> tuple[str, ...] | None:
    """One text or a list of them, as OpenAI's API has it."""
    if field.value is None:
        return None
    if isinstance(field.value, str):
        field = replace(field, value=[field.value])
    stops = field.items(MAX_STOPS)
    for stop in stops:
        if stop.value == "" or not stop.is_text(MAX_STOP_CHARS):
            stop.refuse(f"text of 1 to {MAX_STOP_CHARS} characters")
    return tuple(stop.value for stop in stops)


def _parse_output_format(field: Field) -> dict[str, Any] | None:
    """OpenAI's `response_format`, which is sent to the engine as it is."""
    if field.value is None:
        return None
    kind = field.value.get("type") if isinstance(field.value, Mapping) else None
    if kind == "json_object":
        field.parts(["type"])
    elif kind == "json_schema":
        schema = field.parts(["type", "json_schema"])["json_schema"].parts(["name", "description", "schema", "strict"])
        schema["name"].text("", MAX_SKILL_CHARS)
        if not isinstance(schema["schema"].value, Mapping):
            schema["schema"].refuse("a JSON schema, as an object")
    else:
        field.refuse('null, {"type": "json_object"} or {"type": "json_schema", "json_schema": {…}}')
        return None
    try:
        text = json.dumps(field.value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        field.refuse("JSON")
        return None
    if len(text) > MAX_OUTPUT_FORMAT_CHARS or UNSTORABLE.search(text) or "\\u0000" in text:
        field.refuse(f"at most {MAX_OUTPUT_FORMAT_CHARS} characters of JSON without NUL")
    return dict(field.value)


def _parse_locked(field: Field) -> tuple[str, ...]:
    names = field.items(len(LOCKABLE))
    for name in names:
        if name.value not in LOCKABLE:
            name.refuse(f"one of {', '.join(LOCKABLE)}")
    return tuple(sorted({name.value for name in names if isinstance(name.value, str)}))


def _names(dataclass_type: type[Definition | BlendComponent | Sampling]) -> list[str]:
    return [field.name for field in dataclass_fields(dataclass_type)]


def _shorten(value: object) -> str:
    """`value` as a reader of JSON would write it, short enough for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value))
    return text if len(text) <= MAX_FOUND_CHARS else f"{text[: MAX_FOUND_CHARS - 1]}…"
