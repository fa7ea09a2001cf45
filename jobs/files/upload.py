"""`POST /v1/files`: a form that is written to the disk as it comes, and refused as soon as it breaks a limit.

python-multipart does the parsing; what is too large, too long or not finished leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from django.conf import settings
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from inference.gateway.call import Call
from inference.gateway.errors import InvalidRequest
from jobs.database import in_database
from jobs.errors import FileTooLarge, UnknownField, UploadStalled
from jobs.files import services, storage
from jobs.models import StoredFile
from personas.characters import UNFIT_FOR_NAMES

BUFFER_BYTES = 1024 * 1024
MAX_FIELDS = 8
MAX_FIELD_BYTES = 256
FORM_BYTES = 16 * 1024  # boundaries, headers and the fields beside the file
STALL_TIMEOUT_S = 60.0
EXPIRES_AFTER_S = range(3600, 30 * 24 * 3600 + 1)  # as at OpenAI
MAX_FILENAME_CHARS = 255
FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")

_uploading: Counter[str] = Counter()  # bytes of each tenant's that this process is being sent


@dataclass
class Form:
    """What came: the fields by name, and the file."""

    fields: dict[str, bytes] = field(default_factory=dict)
    filename: str | None = None


async def receive_file(call: Call) -> StoredFile:
    """The file, stored. Raises InvalidRequest, FileTooLarge, TooManyFiles, UploadStalled, ClientGone."""
    boundary = _boundary_of(call)
    form, tenant = Form(), call.key.tenant
    stored = await in_database(partial(services.stored_bytes, tenant))
    services.check_room(stored, 0)
    draft = await asyncio.to_thread(storage.Draft)
    try:
        await _write_form(call, boundary, form, draft, stored)
        if form.filename is None:
            raise InvalidRequest("The form has no 'file'.", param="file")
        if not draft.size:
            raise InvalidRequest("'file' is empty.", param="file")
        keep = partial(
            services.keep_file,
            draft,
            tenant=tenant,
            key_prefix=call.key.prefix,
            purpose=_purpose_of(form),
            filename=form.filename,
            expires_after_s=_expires_after_s(form),
        )
    except BaseException:
        draft.discard()
        raise
    # From here on the thread decides: whoever waits for it may be gone.
    return await in_database(keep)


async def _write_form(call: Call, boundary: bytes, form: Form, draft: storage.Draft, stored: int) -> None:
    tenant, lines, sink = call.key.tenant, LineLimits(), bytearray()
    parser = _FormParser(boundary, form, sink)
    came = 0
    try:
        async for part in _parts(call):
            came += len(part)
            _uploading[tenant] += len(part)
            services.check_room(stored, _uploading[tenant] - FORM_BYTES)
            parser.write(part)
            if draft.size + len(sink) > settings.FILES_MAX_BYTES:
                raise FileTooLarge(settings.FILES_MAX_BYTES)
            if len(sink) >= BUFFER_BYTES:
                lines.check(sink)
                await asyncio.to_thread(draft.write, bytes(sink))
                sink.clear()
        parser.finish()
        lines.check(sink)
        await asyncio.to_thread(draft.write, bytes(sink))
    finally:
        _uploading[tenant] -= came
        if not _uploading[tenant]:
            del _uploading[tenant]


async def _parts(call: Call) -> AsyncIterator[bytes]:
    parts = call.exchange.read_parts(settings.FILES_MAX_BYTES + FORM_BYTES)
    async with contextlib.aclosing(parts):  # type: ignore[type-var]  # a generator
        while True:
            try:
                async with asyncio.timeout(STALL_TIMEOUT_S):
                    part = await anext(parts, None)
            except TimeoutError:
                raise UploadStalled(STALL_TIMEOUT_S) from None
            if part is None:
                return
            yield part


class LineLimits:
    """How many lines there may be, and how long each, seen over a file in pieces."""

    def __init__(self) -> None:
        self._lines = 0
        self._length = 0

    def check(self, data: bytes | bytearray) -> None:
        """Raises InvalidRequest."""
        self._lines += data.count(b"\n")
        if self._lines > settings.BATCH_MAX_LINES:
            raise InvalidRequest(f"'file' has more than {settings.BATCH_MAX_LINES} lines.", param="file")
        *ends, last = data.split(b"\n")
        for end in ends:
            self._check_length(len(end))
            self._length = 0
        self._check_length(len(last))
        self._length += len(last)

    def _check_length(self, more: int) -> None:
        if self._length + more > settings.BATCH_MAX_LINE_BYTES:
            raise InvalidRequest(
                f"A line of 'file' is longer than {settings.BATCH_MAX_LINE_BYTES} bytes.", param="file"
            )


class _FormParser:
    """The file's content goes into `sink`, everything else into `form`."""

    def __init__(self, boundary: bytes, form: Form, sink: bytearray) -> None:
        self._form = form
        self._sink = sink
        self._header: list[bytes] = []
        self._value: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._name: str | None = None  # of the field that is being read; None in the file
        self._parts = 0
        self._ended = False
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_field": lambda data, start, end: self._header.append(data[start:end]),
                    "on_header_value": lambda data, start, end: self._value.append(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._take,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidRequest(f"The form's boundary can't be used: {error}") from None

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InvalidRequest(f"The body is no valid form: {error}") from None

    def finish(self) -> None:
        if not self._ended:
            raise InvalidRequest("The form breaks off before its end.")

    def _begin(self) -> None:
        self._headers.clear()
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise InvalidRequest(f"The form has more than {MAX_FIELDS} fields.")

    def _end_header(self) -> None:
        self._headers[b"".join(self._header).lower()] = b"".join(self._value)
        self._header.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        name = options.get(b"name", b"").decode(errors="replace")
        if name == "file":
            if self._form.filename is not None:
                raise InvalidRequest("The form has more than one 'file'.", param="file")
            self._form.filename = _clean(options.get(b"filename", b"file"))
            self._name = None
        elif name in FIELDS:
            self._form.fields[name] = b""
            self._name = name
        else:
            raise UnknownField(name)

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._name is None:
            self._sink += data[start:end]
            return
        self._form.fields[self._name] += data[start:end]
        if len(self._form.fields[self._name]) > MAX_FIELD_BYTES:
            raise InvalidRequest(f"'{self._name}' is longer than {MAX_FIELD_BYTES} bytes.", param=self._name)

    def _end(self) -> None:
        self._ended = True


def _boundary_of(call: Call) -> bytes:
    content_type = dict(call.exchange.scope["headers"]).get(b"content-type", b"").decode("latin-1")
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InvalidRequest("A file is uploaded as a form: Content-Type: multipart/form-data, with its boundary.")
    return options[b"boundary"]


def _clean(filename: bytes) -> str:
    """A name that can be stored and shown: the last part of a path, without control characters."""
    last = re.split(r"[/\\]", filename.decode(errors="replace"))[-1]
    return UNFIT_FOR_NAMES.sub("", last)[:MAX_FILENAME_CHARS] or "file"


def _purpose_of(form: Form) -> StoredFile.Purpose:
    if (said := form.fields.get("purpose")) is None:
        raise InvalidRequest("The form has no 'purpose'.", param="purpose")
    if said != StoredFile.Purpose.BATCH.value.encode():
        raise InvalidRequest("'purpose' must be 'batch': files are for batches here.", param="purpose")
    return StoredFile.Purpose.BATCH


def _expires_after_s(form: Form) -> int | None:
    anchor, seconds = (form.fields.get(f"expires_after[{part}]") for part in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    text = (seconds or b"").decode("latin-1")
    return check_expires_after((anchor or b"").decode("latin-1"), int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0)


def check_expires_after(anchor: object, seconds: object, field: str = "expires_after") -> int:
    """The seconds after which a file expires. Raises InvalidRequest."""
    if anchor != "created_at":
        raise InvalidRequest(f"'{field}[anchor]' must be 'created_at'.", param=f"{field}[anchor]")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds not in EXPIRES_AFTER_S:
        raise InvalidRequest(
            f"'{field}[seconds]' must be from {EXPIRES_AFTER_S[0]} to {EXPIRES_AFTER_S[-1]}.",
            param=f"{field}[seconds]",
        )
    return seconds
