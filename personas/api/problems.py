"""Every failure of the management API as problem details (RFC 9457), from one place.

`errors` says for each field that is wrong what was expected there and what was found. What a refusal means over HTTP
is the table STATUS; everything else that views, the framework or Django raise is translated here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypedDict

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response

from personas.errors import (
    ImportsBusy,
    InvalidAdapter,
    InvalidDefinition,
    InvalidVectorFile,
    LastOwner,
    NameTaken,
    NoBaseModel,
    Problem,
    Refusal,
    RevisionIsImmutable,
    TooMany,
    UnclearVectorFile,
    VectorInUse,
)

CONTENT_TYPE = "application/problem+json"
MAX_FOUND_CHARS = 80

log = structlog.get_logger("api")

# What isn't here is a 400: the request itself is wrong.
STATUS: Mapping[type[Refusal], int] = {
    NameTaken: 409,
    LastOwner: 409,
    VectorInUse: 409,
    RevisionIsImmutable: 409,
    TooMany: 409,
    NoBaseModel: 409,
    InvalidAdapter: 422,
    InvalidVectorFile: 422,
    UnclearVectorFile: 422,
    ImportsBusy: 503,
}


class ErrorItem(TypedDict):
    """One field that is wrong; `field` is a path such as `draft.blend[1].alpha`."""

    field: str
    expected: str
    found: str


class ApiProblem(exceptions.APIException):
    """A failure that only exists over HTTP."""

    def __init__(self, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})


class Conflict(ApiProblem):
    status_code = 409
    default_code = "conflict"


class LengthRequired(ApiProblem):
    status_code = 411
    default_code = "length_required"


class PreconditionFailed(ApiProblem):
    status_code = 412
    default_code = "precondition_failed"


class TooLarge(ApiProblem):
    status_code = 413
    default_code = "content_too_large"


class IdempotencyKeyReused(ApiProblem):
    status_code = 422
    default_code = "idempotency_key_reused"


class InvalidInput(exceptions.APIException):
    """The body or the query doesn't have the shape that the schema says."""

    status_code = 400
    default_code = "invalid_input"

    def __init__(self, errors: Sequence[ErrorItem]) -> None:
        self.errors = list(errors)
        super().__init__("; ".join(f"{e['field']}: expected {e['expected']}, found {e['found']}" for e in self.errors))


def answer_failure(error: Exception, context: Mapping[str, Any]) -> Response:
    """DRF's exception handler: what `error` is to whoever asked. A bug is logged and is a 500."""
    from rest_framework.views import set_rollback  # which loads what the settings name, this module included

    set_rollback()
    headers: dict[str, str] = {}
    errors: list[ErrorItem] = []
    if isinstance(error, Refusal):
        status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 400)
        code, detail, errors = _kebab(type(error).__name__), str(error), _items(error)
    elif isinstance(error, InvalidInput):
        status, code, detail, errors = error.status_code, error.default_code, str(error.detail), error.errors
    elif isinstance(error, exceptions.ValidationError):
        errors = list(flatten(error.detail, None))
        status, code, detail = 400, "invalid_input", "; ".join(f"{e['field']}: {e['expected']}" for e in errors)
    elif isinstance(error, exceptions.APIException):
        status, code, detail = error.status_code, error.default_code, str(error.detail)
        headers = _headers_of(error)
    elif isinstance(error, Http404):
        status, code, detail = 404, "not_found", str(exceptions.NotFound.default_detail)
    elif isinstance(error, PermissionDenied):
        status, code, detail = 403, "permission_denied", str(exceptions.PermissionDenied.default_detail)
    elif isinstance(error, RequestDataTooBig):
        status, code, detail = 413, "content_too_large", "The body is too large."
    elif isinstance(error, SuspiciousOperation | UnicodeError):
        status, code, detail = 400, "bad_request", "The request can't be read."
    else:
        log.exception("management API failed", path=getattr(context.get("request"), "path", ""))
        status, code, detail = 500, "internal_error", "Something went wrong on our side."
    return Response(
        problem(status, code.replace("_", "-"), detail, errors), status, headers=headers, content_type=CONTENT_TYPE
    )


def problem(status: int, code: str, detail: str, errors: Sequence[ErrorItem] = ()) -> dict[str, Any]:
    """The body of a failure. `type` names the kind; it is a name, not an address."""
    body: dict[str, Any] = {
        "type": f"urn:steerguard:problem:{code}",
        "title": HTTPStatus(status).phrase if code in ("conflict", "bad-request") else _words(code),
        "status": status,
        "detail": detail,
    }
    if errors:
        body["errors"] = list(errors)
    return body


@csrf_exempt
def no_such_path(request: HttpRequest, *_args: object, **_kwargs: object) -> HttpResponse:
    """What answers below `/api/` where nothing else does."""
    body = problem(404, "not-found", str(exceptions.NotFound.default_detail))
    return HttpResponse(json.dumps(body), status=404, content_type=CONTENT_TYPE)


def flatten(detail: Any, data: Any, path: str = "") -> Iterator[ErrorItem]:
    """DRF's nested errors as items, each with what `data` has at its place."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            if name == "non_field_errors":
                yield from flatten(inner, data, path)
            elif isinstance(name, int):
                yield from flatten(inner, _at(data, name), f"{path}[{name}]")
            else:
                yield from flatten(inner, _at(data, name), f"{path}.{name}" if path else str(name))
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            if isinstance(inner, Mapping):
                yield from flatten(inner, _at(data, index), f"{path}[{index}]")
            else:
                yield _item(path, inner, data)
    else:
        yield _item(path, detail, data)


def shorten(value: object) -> str:
    """`value` as JSON, short enough for a message."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    text = re.sub("[\x00-\x1f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)
    return text if len(text) <= MAX_FOUND_CHARS else f"{text[: MAX_FOUND_CHARS - 1]}…"


_MISSING = object()


def _at(data: Any, key: Any) -> Any:
    try:
        return data[key]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def _item(path: str, message: object, value: Any) -> ErrorItem:
    found = "nothing" if value is _MISSING or getattr(message, "code", "") == "required" else shorten(value)
    return ErrorItem(field=path or "body", expected=str(message), found=found)


def _items(error: Refusal) -> list[ErrorItem]:
    problems = error.problems if isinstance(error, InvalidDefinition) else (error,)
    return [_as_item(one) for one in problems]


def _as_item(one: Problem | Refusal) -> ErrorItem:
    return ErrorItem(field=one.field, expected=one.expected, found=one.found)


def _headers_of(error: exceptions.APIException) -> dict[str, str]:
    headers = dict(getattr(error, "headers", {}))
    if getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = error.auth_header  # type: ignore[attr-defined]
    if getattr(error, "wait", None):
        headers["Retry-After"] = str(round(error.wait))  # type: ignore[attr-defined]
    return headers


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def _words(code: str) -> str:
    return code.replace("-", " ").capitalize()
