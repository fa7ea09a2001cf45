"""From what a request names to what it means: the persona's revision and base model, and the skill on top.

Whether another tenant's persona exists is never looked at: it takes the same path, and gets the same answer, as a
name that nobody has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.gateway.address import MAX_MODEL_CHARS, PersonaAddress
from inference.gateway.compose import PLAIN_MODEL, Body
from inference.gateway.directory import Directory, Revision, Skill
from inference.gateway.errors import EngineUnavailable, InvalidRequest, UnknownModel
from inference.gateway.live import LiveDirectory
from inference.gateway.skills import AskedSkill
from personas.definition import BlendComponent, Definition


@dataclass(frozen=True, slots=True)
class Target:
    """What will answer: a persona's revision, or the plain base model (`revision` None)."""

    revision: Revision | None
    base_model: str

    @property
    def name(self) -> str:
        """`tenant/persona@N`, or the base model's name."""
        return self.revision.name if self.revision else self.base_model

    @property
    def definition(self) -> Definition:
        return self.revision.definition if self.revision else PLAIN_MODEL


def asked_model(body: Body) -> str:
    """The `model` of a request, which vLLM would do without and answer unsteered. Raises InvalidRequest."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("'model' must name a persona, such as 'tenant/persona'.", param="model")
    if len(model) > MAX_MODEL_CHARS:
        raise InvalidRequest(f"'model' is longer than {MAX_MODEL_CHARS} characters.", param="model")
    return model


async def resolve_model(
    model: str, *, tenant: str, live: LiveDirectory, personas: frozenset[str] | None = None
) -> Target:
    """What `model` means to `tenant`. Raises UnknownModel, EngineUnavailable.

    `personas` are those that the key may ask, None for all and base models too: others don't exist for it. A persona
    goes before a base model of the same name, which would answer in its stead unsteered.
    """
    if (target := await _find(model, tenant, live, personas)) is not None:
        return target
    # It may be new. Asked for any name whatever, so that the time it takes tells nothing about other tenants.
    await live.refreshed({"persona", "engine"})
    if (target := await _find(model, tenant, live, personas)) is not None:
        return target
    raise UnknownModel(model)


async def _find(model: str, tenant: str, live: LiveDirectory, personas: frozenset[str] | None) -> Target | None:
    address = PersonaAddress.parse(model, home_tenant=tenant)
    if address is not None and address.tenant == tenant and (personas is None or address.persona in personas):
        persona = live.current.personas.get((tenant, address.persona))
        revision = persona.published if persona else None
        if persona and address.number is not None:
            revision = await live.revision(tenant, address.persona, address.number)
        if revision is not None:
            return Target(revision, revision.base_model or default_base_model(live.current))
    return Target(None, model) if model in base_models_for(tenant, personas, live.current) else None


def base_models_for(tenant: str, personas: frozenset[str] | None, directory: Directory) -> list[str]:
    """The base models that a key of `tenant`, restricted to `personas`, may ask unsteered."""
    owner = directory.tenants.get(tenant)
    allowed = personas is None and (owner is None or owner.allows_base_model)
    return directory.base_models() if allowed else []


def default_base_model(directory: Directory) -> str:
    """The model for personas without vectors, which run on any. Raises EngineUnavailable when there is none."""
    for model in directory.base_models():
        return model
    raise EngineUnavailable("No engine has been registered yet.")


async def resolve_skills(
    asked: Sequence[AskedSkill | None], *, tenant: str, base_model: str, live: LiveDirectory
) -> list[BlendComponent | None]:
    """The vectors that the names stand for, at the strength asked for or recommended. Raises InvalidRequest."""
    if not any(asked):
        return [None] * len(asked)
    found: dict[str, Skill] = {}
    for name in dict.fromkeys(skill.name for skill in asked if skill is not None):
        skill = live.current.find_skill(tenant, name, base_model)
        if skill is None:
            skill = (await live.refreshed({"vector"})).find_skill(tenant, name, base_model)
        if skill is None:
            raise InvalidRequest(f"There is no skill '{name[:100]}' for {base_model}.", param="steer_skill")
        found[name] = skill
    return [None if skill is None else _as_component(found[skill.name], skill.alpha) for skill in asked]


def _as_component(skill: Skill, alpha: float | None) -> BlendComponent:
    return BlendComponent(
        vector=skill.digest,
        skill=skill.name,
        alpha=skill.alpha if alpha is None else alpha,
        positions=skill.positions,
    )
