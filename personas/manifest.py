"""Personas as YAML: the file that the demo is made of, that `manage.py apply` takes and that an export is.

    sampling: {temperature: 0}              # for all of the file's personas; optional
    tenants:
      - slug: acme
        personas:
          - slug: support
            name: Support
            blend: {warm: 1.0}              # skills, times their recommended strength …
            blend: [{skill: warm, alpha: 1.5, positions: response, layers: [10]}]   # … or exactly; vector: <digest>

A skill means the tenant's latest vector of that name, or else the latest shared one. A file is untrusted: its size,
depth and aliases are bounded before anything is made of it. What it says is checked by personas/definition.py and
written by personas/services.py, like everybody's changes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from django.contrib.auth.models import User
from django.db import transaction

from personas import services
from personas.definition import Field, find_vectors, name_skills, parse_definition
from personas.errors import InvalidDefinition, InvalidManifest, Problem, Refusal
from personas.models import Persona, SteeringVector, Tenant

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 48
MAX_EVENTS = 200_000
MAX_PERSONAS = 1_000

_PERSONA_FIELDS = [
    "slug",
    "name",
    "description",
    "try",
    "blend",
    "system_prompt",
    "sampling",
    "output_format",
    "max_dose",
    "locked",
    "publish",
]
_EXACT_FIELDS = ["skill", "vector", "alpha", "positions", "layers"]

FindSkill = Callable[[str], SteeringVector | None]


@dataclass(frozen=True, kw_only=True)
class WantedPersona:
    """One persona of a file. `blend` maps skills to times their recommended strength, or lists exact components."""

    slug: str
    name: str
    description: str = ""
    blend: Mapping[str, float] | Sequence[Mapping[str, Any]] = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    """The definition's other fields."""
    publish: bool = True

    def definition(self, find_skill: FindSkill) -> dict[str, Any]:
        """The definition's JSON (personas/definition.py). Raises InvalidDefinition for a skill that isn't there."""
        problems: list[Problem] = []
        blend: list[dict[str, Any]] = []
        for place, said, times in self._components():
            component = dict(said)
            if "skill" in component:
                vector = find_skill(component["skill"])
                if vector is None:
                    problems.append(Problem(place, "a skill that the tenant may use", component["skill"]))
                    continue
                component["vector"] = vector.digest
                component.setdefault("positions", vector.recommended_positions)
                component.setdefault("alpha", round(times * (vector.recommended_alpha or 1.0), 3))
            blend.append(component)
        if problems:
            raise InvalidDefinition(problems)
        return {"blend": blend, **self.rest}

    def _components(self) -> Iterator[tuple[str, Mapping[str, Any], float]]:
        """Where each is said, what is said, and times its recommended strength."""
        if isinstance(self.blend, Mapping):
            for skill, times in self.blend.items():
                yield f"blend.{skill}", {"skill": skill}, times
        else:
            for index, component in enumerate(self.blend):
                yield f"blend[{index}].skill", component, 1.0


@dataclass(frozen=True, kw_only=True)
class WantedTenant:
    """The personas that a file wants a tenant to have."""

    slug: str
    personas: tuple[WantedPersona, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A file that was read; `name` is what messages call it."""

    name: str
    tenants: tuple[WantedTenant, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What applying did to one persona, or would; `diff` is a unified diff of its YAML."""

    persona: str
    action: Literal["created", "updated", "published", "unchanged"]
    diff: str


def read(text: bytes, *, name: str, tenant: str | None = None) -> Manifest:
    """The manifest in `text`. With `tenant`, the file may only name that one, or leave tenants out.

    Raises InvalidManifest with every problem.
    """
    problems: list[Problem] = []
    top = Field("", load(text, name), problems).parts(["sampling", "tenants", "personas"])
    sampling = _mapping(top["sampling"])
    tenants = []
    if top["personas"].given:
        if tenant is None or top["tenants"].given:
            top["personas"].refuse("personas within tenants, or one --tenant for all of them")
        else:
            tenants.append(WantedTenant(slug=tenant, personas=_read_personas(top["personas"], sampling, tenant)))
    for item in top["tenants"].items(MAX_PERSONAS):
        parts = item.parts(["slug", "personas"])
        slug = parts["slug"].text("", 63)
        if tenant is not None and slug != tenant:
            parts["slug"].refuse(tenant)
        tenants.append(WantedTenant(slug=slug, personas=_read_personas(parts["personas"], sampling, slug)))
    if not problems and not top["personas"].given and not top["tenants"].given:
        top["tenants"].refuse("a list of tenants with their personas")
    if problems:
        raise InvalidManifest(name, problems)
    return Manifest(name=name, tenants=tuple(tenants))


def load(text: bytes, name: str) -> Any:
    """The YAML in `text`, as plain values. Raises InvalidManifest, also for what would take long to read."""
    if len(text) > MAX_BYTES:
        raise InvalidManifest(name, [Problem("file", f"at most {MAX_BYTES} bytes", str(len(text)))])
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = events = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            events += 1
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                raise InvalidManifest(name, [Problem("file", "YAML without aliases", f"*{event.anchor}"[:80])])
            if depth > MAX_DEPTH or events > MAX_EVENTS:
                expected = f"YAML of at most {MAX_DEPTH} levels and {MAX_EVENTS} values"
                raise InvalidManifest(name, [Problem("file", expected, "more")])
        return yaml.load(text, Loader=loader)  # noqa: S506  # a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidManifest(name, [Problem("file", "YAML", " ".join(str(error).split())[:200])]) from None


def read_persona(item: Field, sampling: Mapping[str, Any]) -> WantedPersona:
    """One entry of a file, in which `sampling` fills in what it leaves out. Problems are noted in `item`."""
    parts = item.parts(_PERSONA_FIELDS)
    for name in ("slug", "name"):
        if not parts[name].given:
            parts[name].refuse("text")
    description = parts["description"].text("", 2_000)
    suggestion = parts["try"].text("", 2_000)
    publish = parts["publish"]
    if publish.given and not isinstance(publish.value, bool):
        publish.refuse("true or false")
    rest = {name: parts[name].value for name in ("system_prompt", "output_format", "max_dose", "locked")}
    rest = {name: value for name, value in rest.items() if parts[name].given}
    return WantedPersona(
        slug=parts["slug"].text("", 63),
        name=parts["name"].text("", 200),
        description=f"{description} Try: “{suggestion}”".strip() if suggestion else description,
        blend=_read_blend(parts["blend"]),
        rest={**rest, "sampling": {**sampling, **_mapping(parts["sampling"])}},
        publish=publish.value is not False,
    )


def apply(
    manifest: Manifest, *, tenants: Mapping[str, Tenant], dry_run: bool = False, actor: User | None = None
) -> list[Outcome]:
    """Bring the tenants' personas to what the manifest says: all of it, or nothing. What it doesn't name stays.

    A dry run does it and takes it back, so it finds what the real one would find. Raises InvalidManifest with every
    problem of every persona.
    """
    problems: list[Problem] = []
    outcomes: list[Outcome] = []
    with transaction.atomic():
        for wanted_tenant in manifest.tenants:
            tenant = tenants.get(wanted_tenant.slug)
            if tenant is None:
                problems.append(Problem("tenants", "a tenant that is there", wanted_tenant.slug))
                continue
            for wanted in wanted_tenant.personas:
                try:
                    with transaction.atomic():
                        outcomes.append(_apply_one(tenant, wanted, actor))
                except Refusal as error:
                    found = error.problems if isinstance(error, InvalidDefinition) else (error,)
                    place = f"{tenant.slug}/{wanted.slug}"
                    problems += [Problem(f"{place}: {one.field}", one.expected, one.found) for one in found]
        if problems:
            raise InvalidManifest(manifest.name, problems)
        if dry_run:
            transaction.set_rollback(True)
    return outcomes


def export(tenant: Tenant, personas: Iterable[Persona]) -> str:
    """A file that makes these personas' drafts again, here or where the tenant has vectors of the same skills."""
    find_skill = skills_of(tenant)
    entries = [_entry(persona, find_skill) for persona in personas]
    return dump({"tenants": [{"slug": tenant.slug, "personas": entries}]})


def skills_of(tenant: Tenant) -> FindSkill:
    """The vector that a skill means: the tenant's latest of that name, or else the latest shared one."""
    known: dict[str, SteeringVector | None] = {}

    def find(skill: str) -> SteeringVector | None:
        if skill not in known:
            found = SteeringVector.objects.usable_by(tenant).filter(name=skill).order_by("-created_at", "digest")
            known[skill] = next((one for one in found if one.tenant_id is not None), None) or found.first()
        return known[skill]

    return find


def dump(value: Any) -> str:
    """YAML as people write it: in the order given, texts of several lines as blocks."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def text_diff(a: str, b: str, name_a: str, name_b: str) -> str:
    """A unified diff; empty when nothing differs."""
    return "".join(difflib.unified_diff(a.splitlines(True), b.splitlines(True), name_a, name_b))


class _Dumper(yaml.SafeDumper):
    pass


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _read_personas(items: Field, sampling: Mapping[str, Any], tenant: str) -> tuple[WantedPersona, ...]:
    wanted = []
    seen: set[str] = set()
    for item in items.items(MAX_PERSONAS):
        slug = item.value.get("slug") if isinstance(item.value, Mapping) else None
        # Problems are named after the persona where it says its name.
        path = f"{tenant}/{slug}:" if isinstance(slug, str) else item.path
        persona = read_persona(_Named(path, item.value, item.problems), sampling)
        if persona.slug in seen:
            item.problems.append(Problem(f"{path} slug", "each persona once", persona.slug))
        seen.add(persona.slug)
        wanted.append(persona)
    return tuple(wanted)


class _Named(Field):
    """An entry whose fields are named after a persona: `acme/support: blend`."""

    def parts(self, names: list[str]) -> dict[str, Field]:
        known = len(self.problems)
        parts = super().parts(names)
        dotted, named = f"{self.path}.", f"{self.path} "
        self.problems[known:] = [
            Problem(one.field.replace(dotted, named, 1), one.expected, one.found) for one in self.problems[known:]
        ]
        return {
            name: Field(part.path.replace(dotted, named, 1), part.value, part.problems, given=part.given)
            for name, part in parts.items()
        }


def _read_blend(item: Field) -> Mapping[str, float] | list[Mapping[str, Any]]:
    if not item.given:
        return {}
    if isinstance(item.value, Mapping):
        for skill, times in item.value.items():
            if not isinstance(skill, str) or isinstance(times, bool) or not isinstance(times, int | float):
                item.refuse("skills, each with a number: how many times its recommended strength")
                return {}
        return item.value
    components: list[Mapping[str, Any]] = []
    for part in item.items(1_000):
        fields = part.parts(_EXACT_FIELDS)
        if fields["skill"].given == fields["vector"].given:
            part.refuse("either a skill or a vector")
        elif fields["skill"].given and not isinstance(fields["skill"].value, str):
            fields["skill"].refuse("text")
        components.append({name: one.value for name, one in fields.items() if one.given})
    return components


def _mapping(item: Field) -> dict[str, Any]:
    if item.given and not isinstance(item.value, Mapping):
        item.refuse("an object")
        return {}
    return dict(item.value or {})


def _apply_one(tenant: Tenant, wanted: WantedPersona, actor: User | None) -> Outcome:
    find_skill = skills_of(tenant)
    parsed = parse_definition(wanted.definition(find_skill))
    definition = name_skills(parsed, find_vectors(parsed, tenant)).as_json()
    persona = tenant.personas.select_for_update(of=("self",)).filter(slug=wanted.slug).first()
    before = "" if persona is None else dump(_entry(persona, find_skill))
    changed = False
    if persona is None:
        persona = services.create_persona(
            tenant=tenant,
            slug=wanted.slug,
            name=wanted.name,
            description=wanted.description,
            definition=definition,
            actor=actor,
        )
    else:
        if (persona.name, persona.description) != (wanted.name, wanted.description):
            services.update_persona(persona=persona, name=wanted.name, description=wanted.description, actor=actor)
            changed = True
        if persona.draft != definition:
            services.save_draft(persona=persona, definition=definition, actor=actor)
            changed = True
    current = Persona.objects.select_related("tenant", "published").get(pk=persona.pk)
    published = wanted.publish and current.has_unpublished_changes
    if published:
        services.publish_persona(persona=current, actor=actor)
        current = Persona.objects.select_related("tenant", "published").get(pk=persona.pk)
    after = dump(_entry(current, find_skill))
    action: Literal["created", "updated", "published", "unchanged"] = (
        "created" if not before else "updated" if changed else "published" if published else "unchanged"
    )
    diff = text_diff(before, after, f"{current.model_name} (now)", f"{current.model_name} (wanted)")
    return Outcome(persona=current.model_name, action=action, diff=diff)


def _entry(persona: Persona, find_skill: FindSkill) -> dict[str, Any]:
    """The persona's draft as a file has it, without what says nothing."""
    definition = parse_definition(persona.draft)
    blend: list[dict[str, Any]] = []
    for component in definition.blend:
        meant = find_skill(component.skill) if component.skill else None
        is_meant = meant is not None and meant.digest == component.vector
        said: dict[str, Any] = {"skill": component.skill} if is_meant else {"vector": component.vector}
        said |= {"alpha": component.alpha, "positions": component.positions}
        if component.layers is not None:
            said["layers"] = list(component.layers)
        blend.append(said)
    stored = definition.as_json()
    entry: dict[str, Any] = {
        "slug": persona.slug,
        "name": persona.name,
        "description": persona.description,
        "blend": blend,
        **{name: stored[name] for name in ("system_prompt", "sampling", "output_format", "max_dose", "locked")},
    }
    entry = {name: value for name, value in entry.items() if value not in ("", None, [], {})}
    if persona.published_id is None:
        entry["publish"] = False
    return entry
