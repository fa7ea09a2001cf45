"""From what a request names to what it means: the persona's revision and base model, and the skill on top.

Whether another tenant's persona exists is never looked at: it takes the same path, and gets the same answer, as a
name that nobody has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference.gateway.address import MAX_MODEL_CHARS, PersonaAddress
from inference.gateway.compose import PLAIN_MODEL, Body, asked_skill
from inference.gateway.directory import Directory, Revision, Skill
from inference.gateway.errors import EngineUnavailable, InvalidRequest, UnknownModel
from inference.gateway.live import LiveDirectory
from personas.definition import BlendComponent, Definition


@dataclass(frozen=True, slots=True)
class Target:
    """What will answer: a persona's revision, or the plain base model (`revision` None)."""

    revision: Revision | None
    base_model: str

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


async def resolve_model(model: str, *, tenant: str, live: LiveDirectory) -> Target:
    """What `model` means to `tenant`. Raises UnknownModel, EngineUnavailable.

    A persona goes before a base model of the same name, which would answer in its stead unsteered.
    """
    if (target := await _find(model, tenant, live)) is not None:
        return target
    # It may be new. Asked for any name whatever, so that the time it takes tells nothing about other tenants.
    await live.refreshed({"persona", "engine"})
    if (target := await _find(model, tenant, live)) is not None:
        return target
    raise UnknownModel(model)


async def _find(model: str, tenant: str, live: LiveDirectory) -> Target | None:
    address = PersonaAddress.parse(model, home_tenant=tenant)
    if address is not None and address.tenant == tenant:
        persona = live.current.personas.get((tenant, address.persona))
        revision = persona.published if persona else None
        if persona and address.number is not None:
            revision = await live.revision(tenant, address.persona, address.number)
        if revision is not None:
            return Target(revision, revision.base_model or default_base_model(live.current))
    return Target(None, model) if model in live.current.base_models() else None


def default_base_model(directory: Directory) -> str:
    """The model for personas without vectors, which run on any. Raises EngineUnavailable when there is none."""
    for model in directory.base_models():
        return model
    raise EngineUnavailable("No engine has been registered yet.")


async def resolve_skill(
    body: dict[str, Any], *, tenant: str, base_model: str, live: LiveDirectory
) -> BlendComponent | None:
    """The vector that `steer_skill` names, at `steer_alpha` or its recommended strength. Raises InvalidRequest."""
    if (asked := asked_skill(body)) is None:
        return None
    name, alpha = asked
    skill = live.current.find_skill(tenant, name, base_model)
    if skill is None:
        skill = (await live.refreshed({"vector"})).find_skill(tenant, name, base_model)
    if skill is None:
        raise InvalidRequest(f"There is no skill '{name[:100]}' for {base_model}.", param="steer_skill")
    return _as_component(skill, alpha)


def _as_component(skill: Skill, alpha: float | None) -> BlendComponent:
    return BlendComponent(
        vector=skill.digest,
        skill=skill.name,
        alpha=skill.alpha if alpha is None else alpha,
        positions=skill.positions,
    )
