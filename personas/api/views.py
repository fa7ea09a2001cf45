"""What all views of the API share: who may call them, how they answer, what they do with a repeated POST.

The order of checks is the same everywhere: who asks (401), whether the method exists (405), whether the tenant is
theirs (404, in the very words of a tenant that isn't there), whether their role suffices (403), whether the POST was
made before, and only then the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.http.response import HttpResponseBase
from rest_framework.exceptions import MethodNotAllowed, NotAuthenticated, NotFound, PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView

from personas.api import idempotency
from personas.api.authentication import RANK, Caller, Role, caller_of
from personas.api.fields import Input, ListQuery, checked
from personas.api.pagination import Pages
from personas.api.problems import InvalidInput, LengthRequired
from personas.audit import acting_through
from personas.models import Tenant


class ApiView(APIView):
    """A view for whoever has proven who they are."""

    http_method_names = ["get", "head", "post", "put", "patch", "delete"]
    answers_with_secret: ClassVar[bool] = False
    """A POST's answer is shown once and never stored."""

    caller: Caller

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """As DRF's, but for the checks of this API and what surrounds its handlers."""
        self.args, self.kwargs = args, kwargs
        self.headers: dict[str, str] = {}
        self.request = request = self.initialize_request(request, *args, **kwargs)
        response: HttpResponseBase
        try:
            self.initial(request, *args, **kwargs)
            with acting_through(self.caller.key):
                response = self._answer(request, **kwargs)
        except Exception as error:
            response = self.handle_exception(error)
        self.response = self.finalize_response(request, cast(Response, response), *args, **kwargs)
        return self.response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Everything that is decided before the handler."""
        self.format_kwarg = None
        request.accepted_renderer, request.accepted_media_type = self.perform_content_negotiation(request)
        caller = caller_of(request)
        if caller is None:
            raise NotAuthenticated
        self.caller = caller
        method = (request.method or "").lower()
        if method not in self.http_method_names or not hasattr(self, method):
            raise MethodNotAllowed(request.method or "")
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            # The framework would take the body for an empty one.
            raise LengthRequired("Send Content-Length.")
        self.authorize(request)

    def authorize(self, request: Request) -> None:
        """Raises PermissionDenied or NotFound."""
        if not self.caller.may_look:
            raise PermissionDenied("This key has neither the scope `read` nor `manage`.")

    def require_staff(self) -> None:
        """Raises PermissionDenied."""
        if not self.caller.is_staff:
            raise PermissionDenied("Only the installation's staff may do this.")

    @property
    def actor(self) -> User | None:
        """Whom the audit log names; a key is named beside it."""
        return self.caller.user

    def body(self, shape: type[Input]) -> dict[str, Any]:
        """What the body says. Raises InvalidInput."""
        return checked(shape(data=self.request.data), self.request.data)

    def query(self, shape: type[Input]) -> dict[str, Any]:
        """What the query says. Raises InvalidInput."""
        said = self.request.query_params.dict()  # a form's peculiarities (an absent flag is false) are not wanted
        return checked(shape(data=said), said)

    def page(
        self,
        rows: QuerySet[Any],
        query: type[ListQuery],
        represent: type[BaseSerializer[Any]] | Callable[[Any], Mapping[str, Any]],
        *,
        tie: str,
        more_ties: Sequence[str] = (),
        columns: Mapping[str, str] | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Response:
        """A page of `rows`, filtered and ordered as asked; `tie` and `more_ties` order rows that share a place.

        `columns` says what the names of an ordering are called in the query, where that differs.
        """
        given = self.request.query_params.dict()
        shape = query(data=given)
        asked: str = checked(shape, given)["ordering"]
        sign, name = ("-", asked[1:]) if asked.startswith("-") else ("", asked)
        name = (columns or {}).get(name, name)
        pages = Pages(tuple(sign + part for part in dict.fromkeys((name, tie, *more_ties))))
        found = pages.paginate_queryset(rows.filter(shape.filters()), self.request, self) or []
        if isinstance(represent, type):
            return pages.get_paginated_response(represent(found, many=True, context=dict(context or {})).data)
        return pages.get_paginated_response([represent(row) for row in found])

    def _answer(self, request: Request, **kwargs: Any) -> HttpResponseBase:
        handler = getattr(self, (request.method or "").lower())
        if request.method != "POST" or "HTTP_IDEMPOTENCY_KEY" not in request.META:
            return cast(HttpResponseBase, handler(request, **kwargs))
        return idempotency.once(
            request, self.caller, lambda: handler(request, **kwargs), holds_secret=self.answers_with_secret
        )


class TenantView(ApiView):
    """A view of what one tenant owns. Its URL has the tenant's slug as `tenant`.

    `roles` names the least role that each method needs. Whatever else the URL names is looked up within
    `self.tenant` and nowhere else.
    """

    roles: ClassVar[Mapping[str, Role]] = {}

    tenant: Tenant
    role: Role

    def authorize(self, request: Request) -> None:
        found = self.caller.find(self.kwargs["tenant"])
        if found is None:
            raise NotFound
        self.tenant, role = found
        super().authorize(request)
        needed = self.roles["GET" if request.method == "HEAD" else str(request.method)]
        if role is None or RANK[role] < RANK[needed]:
            raise PermissionDenied(f"This needs the role {needed.value}.")
        self.role = role

    def find(self, rows: QuerySet[Any], **named: object) -> Any:
        """The one of the tenant's `rows` that the URL names. Raises NotFound, in the same words for all."""
        row: Model | None = rows.filter(**named).first()
        if row is None:
            raise NotFound
        return row


def require_some(said: Mapping[str, Any], shape: type[Input]) -> None:
    """Raises InvalidInput for a PATCH that says nothing."""
    if not said:
        names = ", ".join(shape().fields)
        raise InvalidInput([{"field": "body", "expected": f"at least one of {names}", "found": "none of them"}])
