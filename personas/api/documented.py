"""How an operation is described in the OpenAPI document: one decorator, so that all say their failures alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers

from personas.api.fields import Input
from personas.api.problems import CONTENT_TYPE

View = TypeVar("View", bound=Callable[..., Any])

FAILURES = {
    400: "A field is wrong; `errors` names it.",
    401: "Nobody is signed in, or the key is unknown, expired or revoked.",
    403: "The caller's role or the key's scope does not suffice, or the CSRF token is missing.",
    404: "There is no such thing for this caller. What belongs to another tenant is answered in the same words.",
    409: "It can't be done as things are: the name is taken, it is in use, or the same request is under way.",
    411: "The body came without `Content-Length`.",
    412: "`If-Match` names another state than the present one.",
    413: "The body is too large.",
    415: "The body has a media type that is not taken here.",
    422: "The `Idempotency-Key` was used for another request; or a file is no vector, or leaves something open.",
    503: "Too many files are being read; ask again soon.",
}


class ErrorItemShape(serializers.Serializer[Any]):
    """One field that is wrong."""

    field = serializers.CharField(help_text="A path such as `draft.blend[1].alpha`")
    expected = serializers.CharField()
    found = serializers.CharField()


class ProblemShape(serializers.Serializer[Any]):
    """Problem details (RFC 9457)."""

    type = serializers.CharField(help_text="Names the kind of problem, such as `urn:steerguard:problem:name-taken`")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = ErrorItemShape(many=True, required=False)  # type: ignore[assignment]  # a field, not what is wrong


IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="Asking again with the same key and body within 24 hours answers what was answered the first time, "
    "with `Idempotency-Replayed: true`. 1 to 255 visible ASCII characters.",
)
IF_MATCH = OpenApiParameter(
    "If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="An `ETag`: 412 when it is another by now"
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, description="An `ETag`: 304 when it is still that"
)


def operation(
    name: str,
    summary: str,
    *,
    tag: str,
    returns: Any = None,
    status: int | Sequence[int] = 200,
    body: Any = None,
    query: type[Input] | None = None,
    media_type: str = "application/json",
    failures: Sequence[int] = (),
    parameters: Sequence[OpenApiParameter] = (),
    description: str = "",
    example: Any = None,
    answer: Any = None,
    is_post: bool = False,
    unchanged: bool = False,
) -> Callable[[View], View]:
    """Describe a view's method. 401 and 403 come by themselves, and those that follow from a body, a query or POST."""
    known = {401, 403, *failures}
    given = list(parameters)
    if body is not None:
        known |= {400, 411, 413, 415}
    if query is not None:
        known.add(400)
        given.append(query)  # type: ignore[arg-type]  # a serializer stands for its fields
    if is_post:
        known |= {400, 409, 422}
        given.append(IDEMPOTENCY_KEY)
    responses: dict[Any, Any] = {
        (code, CONTENT_TYPE): OpenApiResponse(ProblemShape, description=FAILURES[code]) for code in sorted(known)
    }
    for code in (status,) if isinstance(status, int) else status:
        if returns is None:
            responses[code] = OpenApiResponse(description="Done.")
        elif isinstance(returns, serializers.ListSerializer):
            responses[code] = OpenApiResponse(_page_of(returns), description="A page")
        else:
            responses[(code, media_type)] = OpenApiResponse(returns, description="")
    if unchanged:
        responses[304] = OpenApiResponse(description="It is still what `If-None-Match` names.")
    examples = []
    if example is not None:
        examples.append(OpenApiExample("Request", value=example, request_only=True))
    if answer is not None:
        codes = [str(code) for code in ((status,) if isinstance(status, int) else status)]
        examples.append(OpenApiExample("Answer", value=answer, response_only=True, status_codes=codes))
    return extend_schema(
        operation_id=name,
        summary=summary,
        description=description or summary,
        tags=[tag],
        request=body,
        responses=responses,
        parameters=given,
        examples=examples,
    )


def _page_of(rows: serializers.ListSerializer[Any]) -> serializers.Serializer[Any]:
    """What personas/api/pagination.py makes of a list."""
    assert rows.child is not None
    shape: serializers.Serializer[Any] = inline_serializer(
        f"{type(rows.child).__name__.removesuffix('Shape')}Page",
        {
            "next": serializers.URLField(allow_null=True, help_text="The next page; null on the last"),
            "previous": serializers.URLField(allow_null=True),
            "results": type(rows.child)(many=True),  # type: ignore[call-arg]
        },
    )
    return shape
