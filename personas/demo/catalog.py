"""The demo's tenants and personas: `personas.yaml`, read into what the services take.

A blend names skills and how many times each vector's recommended strength; what that is in α depends on the base
model and is filled in by `definition_of`. Beside the hand-tuned personas, a tenant has a grid of voices (each
place in each channel), which is where the fifty come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from personas.demo.recipes import FOLDER
from personas.models import SteeringVector

MIN_TIMES = 0.05
"""Shares below this cancelled out between a place and a channel."""


@dataclass(frozen=True)
class DemoPersona:
    """One persona; `blend` maps a skill to how many times its recommended strength."""

    slug: str
    name: str
    description: str
    blend: Mapping[str, float]
    sampling: Mapping[str, Any]
    system_prompt: str = ""

    def definition(self, vectors: Mapping[str, SteeringVector]) -> dict[str, Any]:
        """The definition's JSON (personas/definition.py), given the vector of each skill."""
        return {
            "blend": [
                {
                    "vector": vectors[skill].digest,
                    "skill": skill,
                    "alpha": round(times * (vectors[skill].recommended_alpha or 1.0), 3),
                    "positions": vectors[skill].recommended_positions,
                }
                for skill, times in self.blend.items()
            ],
            "system_prompt": self.system_prompt,
            "sampling": dict(self.sampling),
        }


@dataclass(frozen=True)
class DemoTenant:
    """One fictional company."""

    slug: str
    name: str
    demo_role: str
    """The role of the demo user in it."""
    personas: tuple[DemoPersona, ...]


@dataclass(frozen=True)
class Catalog:
    """Everything the demo puts into the database, but for vectors."""

    tenants: tuple[DemoTenant, ...]
    first_persona: str
    """`tenant/persona` that a newcomer meets first."""


def load_catalog() -> Catalog:
    """The catalog of this folder."""
    data: dict[str, Any] = yaml.safe_load((FOLDER / "personas.yaml").read_text(encoding="utf-8"))
    sampling = data["sampling"]
    tenants = tuple(
        DemoTenant(
            slug=tenant["slug"],
            name=tenant["name"],
            demo_role=tenant["demo_role"],
            personas=(*_tuned(tenant["personas"], sampling), *_voices(tenant["voices"], sampling)),
        )
        for tenant in data["tenants"]
    )
    return Catalog(tenants=tenants, first_persona=data["first_persona"])


def _tuned(entries: list[dict[str, Any]], sampling: Mapping[str, Any]) -> list[DemoPersona]:
    return [
        DemoPersona(
            slug=entry["slug"],
            name=entry["name"],
            description=_described(entry["description"], entry["try"]),
            blend=entry["blend"],
            sampling={**sampling, **entry.get("sampling", {})},
            system_prompt=entry.get("system_prompt", ""),
        )
        for entry in entries
    ]


def _voices(grid: Mapping[str, Any], sampling: Mapping[str, Any]) -> list[DemoPersona]:
    personas = []
    for place_slug, place in grid["places"].items():
        for channel_slug, channel in grid["channels"].items():
            blend = dict(place["blend"])
            for skill, times in channel["blend"].items():
                blend[skill] = round(blend.get(skill, 0.0) + times, 3)
            personas.append(
                DemoPersona(
                    slug=f"{place_slug}-{channel_slug}",
                    name=f"{place['name']} · {channel['name']}",
                    description=_described(f"{place['voice']}, for the {channel['name']}.", channel["try"]),
                    blend={skill: times for skill, times in blend.items() if abs(times) >= MIN_TIMES},
                    sampling=sampling,
                )
            )
    return personas


def _described(description: str, prompt: str) -> str:
    return f"{description} Try: “{prompt}”"
