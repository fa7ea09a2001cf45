"""LoRA adapters of a tenant: checked when they come in, and the same to an engine when they go out."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar, cast

from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.http import QueryDict, StreamingHttpResponse
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from rest_framework.exceptions import NotFound
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from personas import adapters
from personas.api.adapter_shapes import AdapterChanges, AdapterForm, AdapterQuery, AdapterShape
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.fields import checked
from personas.api.parsing import StrictJsonParser
from personas.api.problems import TooLarge
from personas.api.views import TenantView, require_some
from personas.models import Adapter

TAR = "application/x-tar"
FORM_OVERHEAD_BYTES = 64 * 1024
PIECE_BYTES = 256 * 1024

ADAPTER_EXAMPLE: dict[str, Any] = {
    "digest": "5e1d" + "0" * 60,
    "name": "support-tone",
    "description": "Trained on last year's tickets",
    "base_model": "SmolLM2-135M-Instruct",
    "rank": 16,
    "target_modules": ["k_proj", "o_proj", "q_proj", "v_proj"],
    "num_parameters": 1_843_200,
    "size_bytes": 3_714_456,
    "created_at": "2026-12-01T09:00:00Z",
}


class AdapterFormParser(MultiPartParser):
    """A form that is refused by its length, before anything of it is read."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        meta = (parser_context or {})["request"].META
        most = settings.MAX_ADAPTER_MIB * 1024 * 1024
        if int(meta.get("CONTENT_LENGTH") or 0) > most + FORM_OVERHEAD_BYTES:
            raise TooLarge(f"An adapter has at most {settings.MAX_ADAPTER_MIB} MiB.")
        return super().parse(stream, media_type, parser_context)


class AdaptersView(TenantView):
    """A tenant's adapters."""

    roles: ClassVar = {"GET": Role.VIEWER, "POST": Role.EDITOR}
    parser_classes = [AdapterFormParser]

    @operation(
        "list_adapters",
        "A tenant's LoRA adapters",
        tag="adapters",
        returns=AdapterShape(many=True),
        query=AdapterQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        return self.page(self.tenant.adapters.all(), AdapterQuery, AdapterShape, tie="digest")

    @operation(
        "upload_adapter",
        "Check and store a LoRA adapter (editor)",
        tag="adapters",
        body={"multipart/form-data": AdapterForm},
        returns=AdapterShape,
        status=[200, 201],
        is_post=True,
        failures=[404],
        description="As peft saves it: an archive as `file`, or the two files as `config` and `weights`. It is checked "
        "against the base model that is served here, and 422 lists everything that is wrong, by field. 201 for a new "
        "one; 200 for one that was there, of which what is said is replaced.",
        answer=ADAPTER_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        form = cast(QueryDict, request.data).dict()  # there is no other parser
        said = checked(AdapterForm(data=form), form)
        with tempfile.TemporaryDirectory(prefix="upload-", dir=adapters.store().scratch()) as folder:
            upload = _received(said, Path(folder))
            stored, is_new = adapters.store_adapter(
                tenant=self.tenant,
                upload=upload,
                name=said["name"],
                description=said["description"],
                actor=self.actor,
            )
        return Response(AdapterShape(stored).data, 201 if is_new else 200)


class AdapterDetailView(TenantView):
    """One adapter."""

    roles: ClassVar = {"GET": Role.VIEWER, "PATCH": Role.EDITOR, "DELETE": Role.EDITOR}
    parser_classes = [StrictJsonParser]

    @operation(
        "get_adapter",
        "A LoRA adapter",
        tag="adapters",
        returns=AdapterShape,
        failures=[404],
        answer=ADAPTER_EXAMPLE,
    )
    def get(self, request: Request, tenant: str, adapter: str) -> Response:
        return Response(AdapterShape(self.adapter(adapter)).data)

    @operation(
        "update_adapter",
        "Change what is said about a LoRA adapter (editor)",
        tag="adapters",
        body=AdapterChanges,
        returns=AdapterShape,
        failures=[404],
        example={"description": "Trained on last year's tickets"},
        answer=ADAPTER_EXAMPLE,
    )
    def patch(self, request: Request, tenant: str, adapter: str) -> Response:
        found = self.adapter(adapter)
        said = self.body(AdapterChanges)
        require_some(said, AdapterChanges)
        return Response(AdapterShape(adapters.update_adapter(adapter=found, actor=self.actor, **said)).data)

    @operation("delete_adapter", "Delete a LoRA adapter (editor)", tag="adapters", status=204, failures=[404])
    def delete(self, request: Request, tenant: str, adapter: str) -> Response:
        adapters.delete_adapter(adapter=self.adapter(adapter), actor=self.actor)
        return Response(status=204)

    def adapter(self, digest: str) -> Adapter:
        """Raises NotFound."""
        found: Adapter = self.find(self.tenant.adapters.all(), digest=digest)
        return found


class AdapterFileView(TenantView):
    """An adapter's files."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "download_adapter",
        "A LoRA adapter as a tar of its two files, as they are stored",
        tag="adapters",
        returns=OpenApiTypes.BINARY,
        media_type=TAR,
        failures=[404],
    )
    def get(self, request: Request, tenant: str, adapter: str) -> HttpResponseBase:
        found: Adapter = self.find(self.tenant.adapters.all(), digest=adapter)
        folder = adapters.store().path_of(found.digest)
        name = f"{found.name}-{found.digest[:12]}"
        try:
            members = [_member(path, name) for path in sorted(folder.iterdir())]
        except FileNotFoundError:
            raise NotFound from None
        size = sum(len(header) + path.stat().st_size + len(padding) for path, header, padding in members) + 1024
        return StreamingHttpResponse(
            _tar(members),
            content_type=TAR,
            headers={"Content-Disposition": f'attachment; filename="{name}.tar"', "Content-Length": str(size)},
        )


Member = tuple[Path, bytes, bytes]
"""A file, and what comes before and after it in a tar."""


def _member(path: Path, folder: str) -> Member:
    info = tarfile.TarInfo(f"{folder}/{path.name}")
    info.size = path.stat().st_size
    return path, info.tobuf(tarfile.GNU_FORMAT), b"\0" * (-info.size % tarfile.BLOCKSIZE)


async def _tar(members: list[Member]) -> AsyncIterator[bytes]:
    """Asynchronous, because Django would collect all of another generator before it sent any of it."""
    for path, header, padding in members:
        yield header
        file = await asyncio.to_thread(path.open, "rb")
        try:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece
        finally:
            file.close()
        yield padding
    yield b"\0" * 2 * tarfile.BLOCKSIZE


def _received(said: dict[str, Any], folder: Path) -> Path:
    """The archive that was sent, or a folder with the two files, in `folder`."""
    if "file" in said:
        _save(said["file"], folder / "archive")
        return folder / "archive"
    (folder / "adapter").mkdir(mode=0o700)
    _save(said["config"], folder / "adapter" / "adapter_config.json")
    _save(said["weights"], folder / "adapter" / "adapter_model.safetensors")
    return folder / "adapter"


def _save(file: UploadedFile[Any], path: Path) -> None:
    with path.open("xb") as out:
        for chunk in file.chunks():
            out.write(chunk)
