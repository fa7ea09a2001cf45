"""Steering vectors: the tenant's own and the shared ones. Numbers come and go as canonical safetensors files."""

from __future__ import annotations

from typing import Any, ClassVar

from django.core.files.uploadedfile import UploadedFile
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from personas import services, vector_files
from personas.api import shapes
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.fields import checked
from personas.api.parsing import StrictJsonParser, read_bounded
from personas.api.problems import TooLarge
from personas.api.views import TenantView, require_some
from personas.errors import InvalidField
from personas.models import SteeringVector
from steerguard.vectors import MAX_VECTOR_BYTES, VectorError, read_vector

SAFETENSORS = "application/octet-stream"
FORM_OVERHEAD_BYTES = 64 * 1024

VECTOR_EXAMPLE: dict[str, Any] = {
    "digest": "9f2c" + "0" * 60,
    "name": "warm",
    "is_shared": False,
    "description": "Warm rather than cold",
    "base_model": "SmolLM2-135M-Instruct",
    "hidden_size": 576,
    "layers": [10, 14],
    "norms": {"10": 24.1, "14": 26.3},
    "recommended_alpha": 1.5,
    "recommended_positions": "all",
    "source": {"method": "mean difference"},
    "created_at": "2026-12-01T09:00:00Z",
}


class FileParser(BaseParser):
    """A vector's file as the whole body."""

    media_type = SAFETENSORS

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return read_bounded(stream, MAX_VECTOR_BYTES)


class BoundedFormParser(MultiPartParser):
    """A form that is refused by its length, before anything of it is read."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        meta = (parser_context or {})["request"].META
        if int(meta.get("CONTENT_LENGTH") or 0) > MAX_VECTOR_BYTES + FORM_OVERHEAD_BYTES:
            raise TooLarge(f"A vector's file has at most {MAX_VECTOR_BYTES} bytes.")
        return super().parse(stream, media_type, parser_context)


class VectorView(TenantView):
    """What the views of one vector share."""

    def usable(self) -> QuerySet[SteeringVector]:
        """The tenant's own, and the shared ones of which it has no row of its own."""
        own = SteeringVector.objects.filter(tenant=self.tenant, digest=OuterRef("digest")).values("pk")[:1]
        rows = SteeringVector.objects.usable_by(self.tenant).annotate(own=Subquery(own))
        return rows.exclude(tenant=None, own__isnull=False)

    def vector(self, digest: str) -> SteeringVector:
        """Raises NotFound."""
        vector: SteeringVector = self.find(self.usable(), digest=digest)
        return vector

    def own(self, digest: str) -> SteeringVector:
        """Raises NotFound, PermissionDenied for a shared one."""
        vector = self.vector(digest)
        if vector.tenant_id is None:
            raise PermissionDenied("Shared vectors are the operator's.")
        return vector


class VectorsView(VectorView):
    """The vectors that a tenant may use."""

    roles: ClassVar = {"GET": Role.VIEWER, "POST": Role.EDITOR}
    parser_classes = [FileParser, BoundedFormParser]

    @operation(
        "list_vectors",
        "The vectors that a tenant may use: its own and the shared ones",
        tag="vectors",
        returns=shapes.VectorShape(many=True),
        query=shapes.VectorQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        return self.page(self.usable(), shapes.VectorQuery, shapes.VectorShape, tie="digest")

    @operation(
        "upload_vector",
        "Store a vector (editor)",
        tag="vectors",
        body={"multipart/form-data": shapes.VectorForm, SAFETENSORS: OpenApiTypes.BINARY},
        query=shapes.VectorSaid,
        returns=shapes.VectorShape,
        status=[200, 201],
        is_post=True,
        failures=[404],
        description="As a form, or with the canonical safetensors file as the body and the rest in the query. 201 for "
        f"new numbers; 200 for numbers that were there, of which what is said is replaced. At most {MAX_VECTOR_BYTES} "
        "bytes.",
        answer=VECTOR_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        if not isinstance(request.data, QueryDict):
            said = self.query(shapes.VectorSaid)
            data = request.data if isinstance(request.data, bytes) else b""  # nothing was sent
        else:
            form = request.data.dict()
            said = checked(shapes.VectorForm(data=form), form)
            file: UploadedFile[Any] = said.pop("file")
            data = read_bounded(file, MAX_VECTOR_BYTES)
        try:
            content = read_vector(data)
        except VectorError as error:
            raise InvalidField("file", f"{error.field} with {error.expected}", error.found) from None
        is_new = not self.tenant.vectors.filter(digest=content.digest).exists()
        stored = services.store_vector(tenant=self.tenant, vector=content, actor=self.actor, **said)
        return Response(shapes.VectorShape(stored).data, 201 if is_new else 200)


class VectorDetailView(VectorView):
    """One vector."""

    roles: ClassVar = {"GET": Role.VIEWER, "PATCH": Role.EDITOR, "DELETE": Role.EDITOR}
    parser_classes = [StrictJsonParser]

    @operation(
        "get_vector", "A vector", tag="vectors", returns=shapes.VectorShape, failures=[404], answer=VECTOR_EXAMPLE
    )
    def get(self, request: Request, tenant: str, digest: str) -> Response:
        return Response(shapes.VectorShape(self.vector(digest)).data)

    @operation(
        "update_vector",
        "Change what is said about one of the tenant's own vectors (editor)",
        tag="vectors",
        body=shapes.VectorChanges,
        returns=shapes.VectorShape,
        failures=[404],
        example={"description": "Warm rather than cold", "recommended_alpha": 1.5},
        answer=VECTOR_EXAMPLE,
    )
    def patch(self, request: Request, tenant: str, digest: str) -> Response:
        vector = self.own(digest)
        said = self.body(shapes.VectorChanges)
        require_some(said, shapes.VectorChanges)
        return Response(shapes.VectorShape(services.update_vector(vector=vector, actor=self.actor, **said)).data)

    @operation(
        "delete_vector",
        "Delete one of the tenant's own vectors that no draft and no revision is made of (editor)",
        tag="vectors",
        status=204,
        failures=[404, 409],
    )
    def delete(self, request: Request, tenant: str, digest: str) -> Response:
        services.delete_vector(vector=self.own(digest), actor=self.actor)
        return Response(status=204)


class VectorFileView(VectorView):
    """A vector's numbers."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "download_vector",
        "A vector's canonical safetensors file",
        tag="vectors",
        returns=OpenApiTypes.BINARY,
        media_type=SAFETENSORS,
        failures=[404],
    )
    def get(self, request: Request, tenant: str, digest: str) -> HttpResponseBase:
        vector = self.vector(digest)
        try:
            data = vector_files.path_of(vector.digest).read_bytes()
        except FileNotFoundError:
            raise NotFound from None
        name = f"{vector.name}-{vector.digest[:12]}.safetensors"
        return HttpResponse(
            data, content_type=SAFETENSORS, headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )
