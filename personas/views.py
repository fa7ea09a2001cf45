"""Pages about personas: the playground. Views read and render; every change goes through services.py."""

from dataclasses import asdict
from typing import Any, TypedDict

from django.contrib.auth.decorators import login_required
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from personas.definition import Definition, parse_definition
from personas.models import Persona, Tenant
from personas.playground import (
    DEFAULT_MAX_TOKENS,
    MAX_MESSAGE_CHARS,
    MAX_TOKENS,
    SOCKET_PATH,
    split_description,
)

# What the page says of its two columns.
COLUMNS = (
    {"key": "persona", "title": "Persona", "hint": "The persona’s answer, with its blend at this strength."},
    {"key": "base", "title": "Unsteered", "hint": "The same message to the same model, with nothing added."},
)
SNIPPET_LANGUAGES = ({"key": "curl", "title": "curl"}, {"key": "python", "title": "Python, openai"})


class PersonaCard(TypedDict):
    """A persona as the playground shows it; also the JSON that its scripts read."""

    model: str
    tenant: str
    tenant_name: str
    slug: str
    name: str
    description: str
    revision: int | None
    base_model: str
    blend: list[dict[str, Any]]
    system_prompt: str
    output_format: str
    max_tokens: int | None
    samples: list[str]


@login_required
@require_safe
def playground(request: HttpRequest) -> HttpResponse:
    """The personas of the reader's tenants, one of which answers beside the unsteered model."""
    personas = Persona.objects.select_related("published").prefetch_related("published__vectors", "draft_vectors")
    tenants = Tenant.objects.visible_to(request.user).prefetch_related(Prefetch("personas", personas))
    groups = [
        {"name": tenant.name, "personas": [_card(tenant, persona) for persona in tenant.personas.all()]}
        for tenant in tenants
    ]
    cards = [card for group in groups for card in group["personas"]]
    context = {
        "tenants": groups,
        "persona_count": len(cards),
        "columns": COLUMNS,
        "snippet_languages": SNIPPET_LANGUAGES,
        "limits": {
            "message_chars": MAX_MESSAGE_CHARS,
            "max_tokens": MAX_TOKENS,
            "default_max_tokens": DEFAULT_MAX_TOKENS,
        },
        "page_data": {
            "personas": cards,
            "socket_path": SOCKET_PATH,
            "default_max_tokens": DEFAULT_MAX_TOKENS,
        },
    }
    return render(request, "personas/playground.html", context)


def _card(tenant: Tenant, persona: Persona) -> PersonaCard:
    """What requests get, or the draft where nothing is published yet."""
    revision = persona.published
    definition = parse_definition(revision.definition if revision else persona.draft)
    vectors = {vector.digest: vector for vector in (revision.vectors if revision else persona.draft_vectors).all()}
    description, samples = split_description(persona.description)
    base_models = {vector.base_model for vector in vectors.values()}
    return PersonaCard(
        model=f"{tenant.slug}/{persona.slug}",
        tenant=tenant.slug,
        tenant_name=tenant.name,
        slug=persona.slug,
        name=persona.name,
        description=description,
        revision=revision.number if revision else None,
        base_model=base_models.pop() if base_models else "",
        blend=[
            {
                **asdict(component),
                "layers": list(component.layers or vectors[component.vector].layers),
            }
            for component in definition.blend
            if component.vector in vectors
        ],
        system_prompt=definition.system_prompt,
        output_format=_format_name(definition),
        max_tokens=definition.sampling.max_tokens,
        samples=samples,
    )


def _format_name(definition: Definition) -> str:
    """`json_object`, `json_schema`, …; empty for free text."""
    return str(definition.output_format.get("type", "")) if definition.output_format else ""
