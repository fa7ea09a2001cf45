"""Personas, their revisions, what differs between two of them, and both as YAML."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from django.db import transaction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from rest_framework.request import Request
from rest_framework.response import Response

from personas import manifest, services
from personas.api import shapes
from personas.api.authentication import Role
from personas.api.definition_schema import EXAMPLE
from personas.api.documented import IF_MATCH, IF_NONE_MATCH, operation
from personas.api.etags import check_match, etag_of, is_known
from personas.api.parsing import YamlTextParser
from personas.api.problems import InvalidInput, shorten
from personas.api.views import TenantView, require_some
from personas.errors import InvalidDefinition, Problem
from personas.models import Persona, PersonaRevision

YAML = "application/yaml"

PERSONA_EXAMPLE: dict[str, Any] = {
    "slug": "support",
    "model": "acme/support",
    "name": "Support",
    "description": "Answers customers.",
    "draft": {**EXAMPLE, "adapter": None},
    "published": 7,
    "has_unpublished_changes": False,
    "created_at": "2026-12-01T09:00:00Z",
}
REVISION_EXAMPLE: dict[str, Any] = {
    "number": 7,
    "model": "acme/support@7",
    "definition": {**EXAMPLE, "adapter": None},
    "is_published": True,
    "created_by": "alice",
    "created_at": "2026-12-01T09:00:00Z",
}


class PersonaView(TenantView):
    """What the views of one persona share."""

    def persona(self, slug: str, *, locked: bool = False) -> Persona:
        """The tenant's persona, kept from other changes if `locked`. Raises NotFound."""
        rows = Persona.objects.filter(tenant=self.tenant).select_related("tenant", "published")
        if locked:
            rows = rows.select_for_update(of=("self",))
        persona: Persona = self.find(rows, slug=slug)
        return persona

    def matching(self, slug: str) -> Persona:
        """The persona, locked, in the state that `If-Match` names. Raises NotFound, PreconditionFailed."""
        persona = self.persona(slug, locked=True)
        check_match(self.request, etag_of(shapes.PersonaShape(persona).data))
        return persona

    def answer(self, persona: Persona, status: int = 200) -> Response:
        """The persona as it is now, with its tag."""
        persona = self.persona(persona.slug)
        shown = shapes.PersonaShape(persona).data
        return Response(shown, status, headers={"ETag": etag_of(shown)})


class PersonasView(PersonaView):
    """A tenant's personas."""

    roles: ClassVar = {"GET": Role.VIEWER, "POST": Role.EDITOR}

    @operation(
        "list_personas",
        "A tenant's personas",
        tag="personas",
        returns=shapes.PersonaShape(many=True),
        query=shapes.PersonaQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = self.tenant.personas.select_related("tenant", "published")
        return self.page(rows, shapes.PersonaQuery, shapes.PersonaShape, tie="slug")

    @operation(
        "create_persona",
        "Create a persona with a draft (editor)",
        tag="personas",
        body=shapes.PersonaInput,
        returns=shapes.PersonaShape,
        status=201,
        is_post=True,
        failures=[404],
        example={"slug": "support", "name": "Support", "description": "Answers customers.", "draft": EXAMPLE},
        answer=PERSONA_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        said = self.body(shapes.PersonaInput)
        with _problems_in("draft"):
            persona = services.create_persona(
                tenant=self.tenant,
                slug=said["slug"],
                name=said["name"],
                description=said["description"],
                definition=said.get("draft", {}),
                actor=self.actor,
            )
        return self.answer(persona, 201)


class PersonaDetailView(PersonaView):
    """One persona."""

    roles: ClassVar = {"GET": Role.VIEWER, "PUT": Role.EDITOR, "PATCH": Role.EDITOR, "DELETE": Role.EDITOR}

    @operation(
        "get_persona",
        "A persona",
        tag="personas",
        returns=shapes.PersonaShape,
        failures=[404],
        parameters=[IF_NONE_MATCH],
        unchanged=True,
        answer=PERSONA_EXAMPLE,
    )
    def get(self, request: Request, tenant: str, persona: str) -> Response:
        answer = self.answer(self.persona(persona))
        etag = answer.headers["ETag"]
        return Response(status=304, headers={"ETag": etag}) if is_known(request, etag) else answer

    @operation(
        "replace_persona",
        "Replace a persona's name, description and draft (editor)",
        tag="personas",
        body=shapes.PersonaReplacement,
        returns=shapes.PersonaShape,
        failures=[404, 412],
        parameters=[IF_MATCH],
        example={"name": "Support", "description": "", "draft": EXAMPLE},
        answer=PERSONA_EXAMPLE,
    )
    def put(self, request: Request, tenant: str, persona: str) -> Response:
        return self._change(persona, {"draft": {}, **self.body(shapes.PersonaReplacement)})

    @operation(
        "update_persona",
        "Change a persona's name, description or draft (editor)",
        tag="personas",
        body=shapes.PersonaChanges,
        returns=shapes.PersonaShape,
        failures=[404, 412],
        parameters=[IF_MATCH],
        example={"draft": EXAMPLE},
        answer=PERSONA_EXAMPLE,
    )
    def patch(self, request: Request, tenant: str, persona: str) -> Response:
        said = self.body(shapes.PersonaChanges)
        require_some(said, shapes.PersonaChanges)
        return self._change(persona, said)

    @operation(
        "delete_persona",
        "Delete a persona and its revisions (editor)",
        tag="personas",
        status=204,
        failures=[404, 412],
        parameters=[IF_MATCH],
    )
    @transaction.atomic
    def delete(self, request: Request, tenant: str, persona: str) -> Response:
        services.delete_persona(persona=self.matching(persona), actor=self.actor)
        return Response(status=204)

    @transaction.atomic
    def _change(self, slug: str, said: dict[str, Any]) -> Response:
        persona = self.matching(slug)
        called = {name: said[name] for name in ("name", "description") if name in said}
        if called:
            services.update_persona(persona=persona, actor=self.actor, **called)
        if "draft" in said:
            with _problems_in("draft"):
                services.save_draft(persona=persona, definition=said["draft"], actor=self.actor)
        return self.answer(persona)


class PublicationView(PersonaView):
    """Publishing the draft."""

    roles: ClassVar = {"POST": Role.EDITOR}

    @operation(
        "publish_persona",
        "Make the draft a new revision, which requests get from now on (editor)",
        tag="revisions",
        returns=shapes.RevisionShape,
        status=201,
        is_post=True,
        failures=[404, 412],
        parameters=[IF_MATCH],
        answer=REVISION_EXAMPLE,
    )
    @transaction.atomic
    def post(self, request: Request, tenant: str, persona: str) -> Response:
        with _problems_in("draft"):
            revision = services.publish_persona(persona=self.matching(persona), actor=self.actor)
        return Response(_revision(revision, self.persona(persona)), 201)


class RollBackView(PersonaView):
    """Going back to an earlier revision."""

    roles: ClassVar = {"POST": Role.EDITOR}

    @operation(
        "roll_back_persona",
        "Publish an earlier revision anew, under a new number (editor)",
        tag="revisions",
        body=shapes.RollBackInput,
        returns=shapes.RevisionShape,
        status=201,
        is_post=True,
        failures=[404, 412],
        parameters=[IF_MATCH],
        description="The draft stays as it is.",
        example={"number": 6},
        answer=REVISION_EXAMPLE,
    )
    @transaction.atomic
    def post(self, request: Request, tenant: str, persona: str) -> Response:
        found = self.matching(persona)
        number = self.body(shapes.RollBackInput)["number"]
        revision = services.roll_back_persona(persona=found, number=number, actor=self.actor)
        return Response(_revision(revision, self.persona(persona)), 201)


class RevisionsView(PersonaView):
    """A persona's history."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "list_revisions",
        "A persona's revisions, the latest first",
        tag="revisions",
        returns=shapes.RevisionShape(many=True),
        query=shapes.RevisionQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str, persona: str) -> Response:
        found = self.persona(persona)
        rows = found.revisions.select_related("created_by")
        return self.page(rows, shapes.RevisionQuery, shapes.RevisionShape, tie="number", context={"persona": found})


class RevisionView(PersonaView):
    """One revision."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "get_revision",
        "A revision",
        tag="revisions",
        returns=shapes.RevisionShape,
        failures=[404],
        answer=REVISION_EXAMPLE,
    )
    def get(self, request: Request, tenant: str, persona: str, number: int) -> Response:
        found = self.persona(persona)
        return Response(_revision(self.find(found.revisions.select_related("created_by"), number=number), found))


class DiffView(PersonaView):
    """What differs between two states of a persona."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "diff_persona",
        "What differs between two revisions, or the draft and what is published",
        tag="revisions",
        returns=shapes.DiffShape,
        query=shapes.DiffQuery,
        failures=[404],
        answer={
            "a": "published",
            "b": "draft",
            "changes": [{"field": "system_prompt", "a": "", "b": "You work for Acme."}],
            "text": "--- published\n+++ draft\n@@ -1,2 +1,2 @@\n …",
        },
    )
    def get(self, request: Request, tenant: str, persona: str) -> Response:
        found = self.persona(persona)
        said = self.query(shapes.DiffQuery)
        a, b = (self._state(found, name, said[name]) for name in ("a", "b"))
        changes = [
            {"field": field, "a": a.get(field), "b": b.get(field)}
            for field in sorted(a.keys() | b.keys())
            if a.get(field) != b.get(field)
        ]
        text = manifest.text_diff(manifest.dump(a), manifest.dump(b), said["a"], said["b"])
        return Response({"a": said["a"], "b": said["b"], "changes": changes, "text": text})

    def _state(self, persona: Persona, parameter: str, named: str) -> dict[str, Any]:
        if named == "draft":
            return dict(persona.draft)
        if named == "published":
            return dict(persona.published.definition) if persona.published else {}
        if not named.isascii() or not named.isdigit() or len(named) > 9:
            expected = "the number of a revision, draft or published"
            raise InvalidInput([{"field": parameter, "expected": expected, "found": shorten(named)}])
        revision: PersonaRevision = self.find(persona.revisions.all(), number=int(named))
        return dict(revision.definition)


class ExportView(PersonaView):
    """A persona as YAML."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "export_persona",
        "A persona's draft as a YAML file that `apply` takes",
        tag="personas",
        returns=OpenApiTypes.OBJECT,
        media_type=YAML,
        failures=[404],
        answer={
            "tenants": [
                {
                    "slug": "acme",
                    "personas": [{"slug": "support", "name": "Support", "blend": [{"skill": "warm", "alpha": 1.5}]}],
                }
            ]
        },
    )
    def get(self, request: Request, tenant: str, persona: str) -> HttpResponseBase:
        found = self.persona(persona)
        text = manifest.export(self.tenant, [found])
        return HttpResponse(text, content_type=f"{YAML}; charset=utf-8")


class ApplyView(TenantView):
    """Bringing a tenant's personas to what a YAML file says."""

    roles: ClassVar = {"POST": Role.EDITOR}
    parser_classes = [YamlTextParser]

    @operation(
        "apply_personas",
        "Create, update and publish the personas of a YAML file (editor)",
        tag="personas",
        body={YAML: OpenApiTypes.OBJECT},
        query=shapes.ApplyQuery,
        returns=shapes.AppliedShape,
        is_post=True,
        failures=[404],
        description="All of the file or nothing. Personas that it doesn't name stay. The file's tenants may only be "
        "the one in the address. Applying it again changes nothing.",
        answer={
            "dry_run": False,
            "personas": [{"persona": "acme/support", "action": "unchanged", "diff": ""}],
        },
    )
    def post(self, request: Request, tenant: str) -> Response:
        dry_run = self.query(shapes.ApplyQuery)["dry_run"]
        text = request.data if isinstance(request.data, bytes) else b""
        wanted = manifest.read(text, name="body", tenant=self.tenant.slug)
        outcomes = manifest.apply(wanted, tenants={self.tenant.slug: self.tenant}, dry_run=dry_run, actor=self.actor)
        shown = [{"persona": one.persona, "action": one.action, "diff": one.diff} for one in outcomes]
        return Response({"dry_run": dry_run, "personas": shown})


@contextmanager
def _problems_in(field: str) -> Iterator[None]:
    """A definition's problems, named as the body names them."""
    try:
        yield
    except InvalidDefinition as error:
        paths = [field if one.field == "definition" else f"{field}.{one.field}" for one in error.problems]
        raise InvalidDefinition(
            [Problem(path, one.expected, one.found) for path, one in zip(paths, error.problems, strict=True)]
        ) from None


def _revision(revision: PersonaRevision, persona: Persona) -> dict[str, Any]:
    return dict(shapes.RevisionShape(revision, context={"persona": persona}).data)
