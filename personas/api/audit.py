"""A tenant's audit log."""

from __future__ import annotations

from typing import ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from personas.api import shapes
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.views import TenantView


class AuditView(TenantView):
    """Who did what."""

    roles: ClassVar = {"GET": Role.OWNER}

    @operation(
        "list_audit_events",
        "Who did what, the latest first (owner)",
        tag="audit log",
        returns=shapes.AuditShape(many=True),
        query=shapes.AuditQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = self.tenant.audit_events.select_related("actor")
        return self.page(rows, shapes.AuditQuery, shapes.AuditShape, tie="pk")
