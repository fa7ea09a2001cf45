"""Steering vectors: the tenant's own and the shared ones. Numbers come as files of any known tool, and go as some."""

from __future__ import annotations

import json
from dataclasses import replace
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
from personas.api import vector_shapes as shapes
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.fields import Input, checked
from personas.api.parsing import StrictJsonParser, read_bounded
from personas.api.problems import TooLarge
from personas.api.views import TenantView, require_some
from personas.errors import InvalidField
from personas.models import SteeringVector
from personas.vector_imports import understand
from steerguard.vectors import SteeringVector as VectorContent
from steerguard.vectors import VectorError, read_vector
from steerguard.vectors.exporters import EXPORTS
from steerguard.vectors.importers import MAX_SOURCE_BYTES, Imported

BINARY = "application/octet-stream"
FORM_OVERHEAD_BYTES = 64 * 1024
MAX_FILE_NAME_CHARS = 200
FILE_FIELDS = tuple(str(name) for name in shapes.VectorFileSaid().fields if name != "name")

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
PREVIEW_EXAMPLE: dict[str, Any] = {
    "format": "llama.cpp",
    "convention": "direction.N is what block N-1 put out (index=measured)",
    "blocks": [9, 13],
    "hidden_size": 576,
    "digest": "9f2c" + "0" * 60,
    "norm": "unit",
    "norms": {"9": 1.0, "13": 1.0},
    "name": "warm",
    "base_model": "SmolLM2-135M-Instruct",
    "warnings": ["llama.cpp itself adds each vector one block later than it was measured; index=applied does the same"],
    "is_stored": False,
}


class FileParser(BaseParser):
    """A vector's file as the whole body."""

    media_type = BINARY

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return read_bounded(stream, MAX_SOURCE_BYTES)


class BoundedFormParser(MultiPartParser):
    """A form that is refused by its length, before anything of it is read."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        meta = (parser_context or {})["request"].META
        if int(meta.get("CONTENT_LENGTH") or 0) > MAX_SOURCE_BYTES + FORM_OVERHEAD_BYTES:
            raise TooLarge(f"A vector's file has at most {MAX_SOURCE_BYTES} bytes.")
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


class VectorUploadView(VectorView):
    """What the views that take a file share."""

    parser_classes = [FileParser, BoundedFormParser]

    def understood(self, request: Request, query: type[Input], form: type[Input]) -> tuple[dict[str, Any], Imported]:
        """What was said that is not about the file, and the file. Raises InvalidInput, InvalidVectorFile, …"""
        if not isinstance(request.data, QueryDict):
            said = self.query(query)
            data = request.data if isinstance(request.data, bytes) else b""  # nothing was sent
            file_name = ""
        else:
            fields = request.data.dict()
            said = checked(form(data=fields), fields)
            file: UploadedFile[Any] = said.pop("file")
            data = read_bounded(file, MAX_SOURCE_BYTES)
            file_name = (file.name or "")[:MAX_FILE_NAME_CHARS]
        about_file = {name: said.pop(name) for name in FILE_FIELDS if name in said}
        return said, understand(data, file_name, {**about_file, "name": said.get("name", "")})

    def is_stored(self, imported: Imported) -> bool:
        return self.tenant.vectors.filter(digest=imported.vector.digest).exists()


class VectorsView(VectorUploadView):
    """The vectors that a tenant may use."""

    roles: ClassVar = {"GET": Role.VIEWER, "POST": Role.EDITOR}

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
        "Store a vector from a file of any known tool (editor)",
        tag="vectors",
        body={"multipart/form-data": shapes.VectorForm, BINARY: OpenApiTypes.BINARY},
        query=shapes.VectorUploadSaid,
        returns=shapes.VectorShape,
        status=[200, 201],
        is_post=True,
        failures=[404, 503],
        description="As a form, or with the file as the body and the rest in the query. Files of other tools need the "
        "model's `hidden_size`, `num_layers` and `base_model`; what else a file leaves open, a 422 names. 201 for new "
        f"numbers; 200 for numbers that were there, of which what is said is replaced. At most {MAX_SOURCE_BYTES} "
        "bytes.",
        answer=VECTOR_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        said, imported = self.understood(request, shapes.VectorUploadSaid, shapes.VectorForm)
        status = 200 if self.is_stored(imported) else 201
        stored = services.store_vector(tenant=self.tenant, vector=imported.vector, actor=self.actor, **said)
        return Response(shapes.VectorShape(stored).data, status)


class VectorPreviewView(VectorUploadView):
    """What a file would be stored as."""

    roles: ClassVar = {"POST": Role.EDITOR}

    @operation(
        "preview_vector",
        "Say how a vector's file is understood, and store nothing (editor)",
        tag="vectors",
        body={"multipart/form-data": shapes.VectorPreviewForm, BINARY: OpenApiTypes.BINARY},
        query=shapes.VectorFileSaid,
        returns=shapes.VectorPreviewShape,
        is_post=True,
        failures=[404, 503],
        description="Takes what `upload_vector` takes of a file and about it, and refuses what that refuses.",
        answer=PREVIEW_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        _, imported = self.understood(request, shapes.VectorFileSaid, shapes.VectorPreviewForm)
        return Response({**imported.as_json(), "is_stored": self.is_stored(imported)})


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


def as_described(content: VectorContent, vector: SteeringVector) -> VectorContent:
    """The numbers with what this tenant says of them: the file is shared by all who have the same numbers."""
    said = {key: value if isinstance(value, str) else json.dumps(value) for key, value in vector.source.items()}
    return replace(content, name=vector.name, base_model=vector.base_model, provenance=said)


class VectorFileView(VectorView):
    """A vector's numbers."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "download_vector",
        "A vector's file: canonical safetensors, or GGUF for repeng and llama.cpp",
        tag="vectors",
        returns=OpenApiTypes.BINARY,
        query=shapes.VectorFileQuery,
        media_type=BINARY,
        failures=[404],
    )
    def get(self, request: Request, tenant: str, digest: str) -> HttpResponseBase:
        vector = self.vector(digest)
        extension, write = EXPORTS[self.query(shapes.VectorFileQuery)["format"]]
        try:
            content = read_vector(vector_files.path_of(vector.digest))
        except FileNotFoundError:
            raise NotFound from None
        try:
            data = write(as_described(content, vector))
        except VectorError as error:
            raise InvalidField("format", f"one that can hold it: {error.expected}", error.found) from None
        name = f"{vector.name}-{vector.digest[:12]}.{extension}"
        return HttpResponse(
            data, content_type=BINARY, headers={"Content-Disposition": f'attachment; filename="{name}"'}
        )
