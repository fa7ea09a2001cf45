"""Who may ask for what, and who can answer: everything that a request needs to know, in this process's memory.

A `Directory` is an immutable picture of the database; looking something up is a dictionary access, never a query.
`live` replaces the picture when something changes.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from personas.definition import Definition, PositionsName


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be asked for; None is no limit (personas.models.Limits)."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None

    @property
    def counts_tokens(self) -> bool:
        return not (self.tokens_per_minute is self.tokens_per_day is self.tokens_per_month is None)

    @property
    def any(self) -> bool:
        return self.counts_tokens or not (self.requests_per_minute is self.concurrent_requests is None)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """What an operator has set for a tenant."""

    allows_base_model: bool = True
    logs_prompts: bool = False
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Key:
    """An API key that is neither revoked nor, when it was read, expired. `personas` None: it may ask all."""

    tenant: str
    name: str
    prefix: str
    digest: str
    expires_at: datetime | None
    scopes: frozenset[str] = frozenset({"inference"})
    personas: frozenset[str] | None = None
    limits: Limits = NO_LIMITS

    def proves(self, digest: str, *, now: datetime) -> bool:
        """Whether `digest`, of the text that a client sent, opens this key now. Takes the same time either way."""
        alike = hmac.compare_digest(self.digest, digest)
        return alike and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a persona. `base_model` is the one its vectors are made for, None when it has none."""

    tenant: str
    persona: str
    number: int
    definition: Definition
    base_model: str | None

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.persona}@{self.number}"


@dataclass(frozen=True, slots=True)
class Persona:
    """A published persona. Its revisions are numbered from 1 to `newest` without gaps."""

    published: Revision
    newest: int
    created_at: datetime

    @property
    def model_name(self) -> str:
        return f"{self.published.tenant}/{self.published.persona}"


@dataclass(frozen=True, slots=True)
class Skill:
    """The newest vector of a name, for requests that name skills instead of (or on top of) a persona."""

    name: str
    digest: str
    base_model: str
    alpha: float
    positions: PositionsName


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    url: str
    api_key: str = field(repr=False)
    base_model: str
    status: str


@dataclass(frozen=True, slots=True)
class Directory:
    """`skills` of tenant None are the shared ones."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    keys: Mapping[str, Key] = field(default_factory=dict)
    personas: Mapping[tuple[str, str], Persona] = field(default_factory=dict)
    skills: Mapping[tuple[str | None, str], tuple[Skill, ...]] = field(default_factory=dict)
    engines: tuple[Engine, ...] = ()

    def personas_of(self, tenant: str) -> list[Persona]:
        return [persona for (owner, _), persona in self.personas.items() if owner == tenant]

    def find_skill(self, tenant: str, name: str, base_model: str) -> Skill | None:
        """The tenant's own vector of that name before a shared one, for `base_model` only."""
        for owner in (tenant, None):
            for skill in self.skills.get((owner, name), ()):
                if skill.base_model == base_model:
                    return skill
        return None

    def base_models(self) -> list[str]:
        """What the engines serve, whether or not they are up: a name doesn't come and go with its engine."""
        return sorted({engine.base_model for engine in self.engines if engine.base_model})
