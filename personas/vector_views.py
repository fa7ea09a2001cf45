"""Pages about vectors: which there are, where one comes from and what it resembles, and bringing one in.

Views read and render. Importing is the API's (personas/api/vectors.py): the page's script sends the file there twice,
to be understood and then to be stored.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from personas.base_models import known_base_models
from personas.models import Membership, Persona, SteeringVector, Tenant
from personas.vector_charts import heat_rows, norm_chart
from personas.vector_similarity import ALIKE, MAX_COMPARED, compare, content_of
from steerguard.vectors.importers import CANONICAL, FOREIGN, MAX_SOURCE_BYTES

FORMATS = [
    {"name": CANONICAL, "title": "SteerGuard safetensors"},
    *({"name": one.name, "title": one.title} for one in FOREIGN.values()),
]
# Of a vector's source, in the order in which the page says them.
SOURCE_WORDS = {
    "source_format": "Format",
    "source_file": "File",
    "source_sha256": "SHA-256 of the file",
    "convention": "How it was read",
    "norm": "Norm",
    "num_layers": "Blocks of the model",
    "source_model_hint": "Model hint in the file",
    "source_method": "Method",
    "method": "Method",
    "tokens": "Tokens",
    "pairs": "Contrastive pairs",
    "pairs_sha256": "SHA-256 of the pairs",
}
MAX_LISTED = 500
EXPORT_FORMATS = (("canonical", "safetensors"), ("repeng", "GGUF for repeng"), ("llama.cpp", "GGUF for llama.cpp"))


@login_required
@require_safe
def vectors(request: HttpRequest) -> HttpResponse:
    """The vectors of the reader's tenants, and below each the shared ones that it may use as well."""
    assert isinstance(request.user, User)
    memberships = Membership.objects.filter(user=request.user).select_related("tenant").order_by("tenant__slug")
    groups = [
        {
            "tenant": membership.tenant,
            "may_edit": membership.may_edit,
            "vectors": _listed(membership.tenant),
        }
        for membership in memberships
    ]
    return render(request, "personas/vectors.html", {"groups": groups})


@login_required
@require_safe
def vector(request: HttpRequest, tenant: str, digest: str) -> HttpResponse:
    """One vector: norms, what it resembles, where it comes from, who uses it."""
    membership = _membership(request, tenant)
    owner = membership.tenant
    row = get_object_or_404(_usable(owner), digest=digest)
    content = content_of(row)
    norms = {int(block): norm for block, norm in row.norms.items()}
    residual = {block: _number(row.source.get(f"residual_norm.{block}")) for block in norms}
    others = _usable(owner).filter(base_model=row.base_model, hidden_size=row.hidden_size).exclude(pk=row.pk)
    compared = compare(content, others.order_by("-created_at")[:MAX_COMPARED]) if content is not None else []
    context = {
        "tenant": owner,
        "may_edit": membership.may_edit,
        "vector": row,
        "is_readable": content is not None,
        "chart": norm_chart(norms),
        "norms": [
            {"block": block, "norm": norm, "dose": norm / residual[block] if residual[block] else None}
            for block, norm in norms.items()
        ],
        "has_doses": any(residual.values()),
        "heat": heat_rows(compared, row.layers),
        "warnings": [one for one in compared if one.warning],
        "alike": ALIKE,
        "left_out": max(0, others.count() - MAX_COMPARED),
        "source": _source_words(row.source),
        "personas": _personas_with(row, owner),
        "exports": [
            {"title": title, "url": f"{_file_url(owner, row)}?format={name}"}
            for name, title in EXPORT_FORMATS
            if name != "llama.cpp" or 0 not in row.layers
        ],
    }
    return render(request, "personas/vector.html", context)


@login_required
@require_safe
def vector_import(request: HttpRequest, tenant: str) -> HttpResponse:
    """The form that a vector comes in by. For those who may edit; to others it isn't there."""
    membership = _membership(request, tenant)
    if not membership.may_edit:
        raise Http404
    owner = membership.tenant
    models = known_base_models(owner)
    context = {
        "tenant": owner,
        "formats": FORMATS,
        "models": models,
        "page_data": {
            "models": [asdict(model) for model in models],
            "upload_url": reverse("api-vectors", args=[owner.slug]),
            "preview_url": reverse("api-vector-preview", args=[owner.slug]),
            "page_url": reverse("vector", args=[owner.slug, "0" * 64]),
            "max_bytes": MAX_SOURCE_BYTES,
        },
    }
    return render(request, "personas/vector_import.html", context)


def _membership(request: HttpRequest, tenant: str) -> Membership:
    """The reader's place in the tenant. Http404 without one, as for a tenant that isn't there."""
    assert isinstance(request.user, User)
    return get_object_or_404(Membership.objects.select_related("tenant"), user=request.user, tenant__slug=tenant)


def _usable(tenant: Tenant) -> QuerySet[SteeringVector]:
    """The tenant's own, and the shared ones of which it has no row of its own."""
    own = SteeringVector.objects.filter(tenant=tenant, digest=OuterRef("digest"))
    return SteeringVector.objects.usable_by(tenant).exclude(Q(tenant=None) & Exists(own)).order_by("name", "digest")


def _listed(tenant: Tenant) -> list[dict[str, Any]]:
    """The vectors that the tenant may use, each with how many of its personas are made of it."""
    drafts = Persona.draft_vectors.through.objects.filter(persona__tenant=tenant)
    revisions = SteeringVector.revisions.through.objects.filter(personarevision__persona__tenant=tenant)
    users: dict[int, set[int]] = {}
    for vector_id, persona_id in [
        *drafts.values_list("steeringvector_id", "persona_id"),
        *revisions.values_list("steeringvector_id", "personarevision__persona_id").distinct(),
    ]:
        users.setdefault(vector_id, set()).add(persona_id)
    return [
        {
            "row": row,
            "blocks": ranges(row.layers),
            "personas": len(users.get(row.pk, ())),
            "made_by": row.source.get("source_format") or row.source.get("method") or "",
        }
        for row in _usable(tenant)[:MAX_LISTED]
    ]


def ranges(blocks: Sequence[int]) -> str:
    """Ascending blocks in short: `2, 8–18`."""
    parts: list[list[int]] = []
    for block in blocks:
        if parts and block == parts[-1][-1] + 1:
            parts[-1].append(block)
        else:
            parts.append([block])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts)


def _personas_with(vector: SteeringVector, tenant: Tenant) -> list[dict[str, Any]]:
    """The tenant's personas that are made of it, and whether requests get it."""
    users = Persona.objects.filter(tenant=tenant).select_related("tenant", "published")
    users = users.annotate(
        in_draft=Exists(Persona.draft_vectors.through.objects.filter(persona=OuterRef("pk"), steeringvector=vector)),
        in_published=Exists(
            SteeringVector.revisions.through.objects.filter(
                personarevision=OuterRef("published"), steeringvector=vector
            )
        ),
    )
    old = Exists(
        SteeringVector.revisions.through.objects.filter(personarevision__persona=OuterRef("pk"), steeringvector=vector)
    )
    return [
        {
            "name": persona.name,
            "model": persona.model_name,
            "state": "published" if persona.in_published else "draft" if persona.in_draft else "an old revision",
        }
        for persona in users.filter(Q(in_draft=True) | Q(old)).order_by("slug")
    ]


def _source_words(source: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of a vector's making, in words; what has none is shown by its own name."""
    known = [(words, str(source[key])) for key, words in SOURCE_WORDS.items() if source.get(key)]
    rest = sorted(key for key in source if key not in SOURCE_WORDS and not key.startswith("residual_norm."))
    return [*known, *((key, str(source[key])) for key in rest if source[key] not in (None, ""))]


def _file_url(tenant: Tenant, vector: SteeringVector) -> str:
    return reverse("api-vector-file", args=[tenant.slug, vector.digest])


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None
