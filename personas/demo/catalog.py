"""The demo's tenants and personas: `personas.yaml`, read into what the services take.

personas/manifest.py reads the entries, in which a blend names skills and how many times each vector's recommended
strength. Beside the hand-tuned personas, a tenant has a grid of voices (each place in each channel), which is where the
fifty come from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from personas.definition import Field
from personas.demo.recipes import FOLDER
from personas.errors import InvalidManifest, Problem
from personas.manifest import WantedPersona, load, read_persona

MIN_TIMES = 0.05
"""Shares below this cancelled out between a place and a channel."""


@dataclass(frozen=True)
class DemoTenant:
    """One fictional company."""

    slug: str
    name: str
    demo_role: str
    """The role of the demo user in it."""
    personas: tuple[WantedPersona, ...]


@dataclass(frozen=True)
class Catalog:
    """Everything the demo puts into the database, but for vectors."""

    tenants: tuple[DemoTenant, ...]
    first_persona: str
    """`tenant/persona` that a newcomer meets first."""


def load_catalog() -> Catalog:
    """The catalog of this folder."""
    data: dict[str, Any] = load((FOLDER / "personas.yaml").read_bytes(), "personas.yaml")
    tenants = tuple(
        DemoTenant(
            slug=tenant["slug"],
            name=tenant["name"],
            demo_role=tenant["demo_role"],
            personas=tuple(
                _wanted(entry, data["sampling"]) for entry in (*tenant["personas"], *_voices(tenant["voices"]))
            ),
        )
        for tenant in data["tenants"]
    )
    return Catalog(tenants=tenants, first_persona=data["first_persona"])


def _wanted(entry: Mapping[str, Any], sampling: Mapping[str, Any]) -> WantedPersona:
    problems: list[Problem] = []
    wanted = read_persona(Field(f"{entry['slug']}", entry, problems), sampling)
    if problems:
        raise InvalidManifest("personas.yaml", problems)
    return wanted


def _voices(grid: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """An entry for each place in each channel."""
    for place_slug, place in grid["places"].items():
        for channel_slug, channel in grid["channels"].items():
            blend = dict(place["blend"])
            for skill, times in channel["blend"].items():
                blend[skill] = round(blend.get(skill, 0.0) + times, 3)
            yield {
                "slug": f"{place_slug}-{channel_slug}",
                "name": f"{place['name']} · {channel['name']}",
                "description": f"{place['voice']}, for the {channel['name']}.",
                "try": channel["try"],
                "blend": {skill: times for skill, times in blend.items() if abs(times) >= MIN_TIMES},
            }
