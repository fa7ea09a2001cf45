"""What a tenant used, by day, persona and key."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import Sum
from rest_framework.request import Request
from rest_framework.response import Response

from inference.api import shapes
from inference.usage import AMOUNTS, usage_of
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.problems import InvalidInput
from personas.api.views import TenantView


class UsageView(TenantView):
    """Sums of a tenant's usage."""

    roles: ClassVar = {"GET": Role.VIEWER}

    @operation(
        "list_usage",
        "What the tenant used, summed by day, persona and key, or by some of them",
        tag="usage",
        returns=shapes.UsageShape(many=True),
        query=shapes.UsageQuery,
        failures=[404],
        description="Counts arrive within seconds of the requests. Names stay when a persona or key is gone.",
    )
    def get(self, request: Request, tenant: str) -> Response:
        said = self.query(shapes.UsageQuery)
        groups: list[str] = said["group_by"]
        order = said["ordering"].lstrip("-")
        columns = {name: f"sum_{name}" for name in AMOUNTS}
        if order in shapes.GROUPS and order not in groups:
            if "ordering" in request.query_params:
                expected = f"an amount, or one of the groups {', '.join(groups)}"
                raise InvalidInput([{"field": "ordering", "expected": expected, "found": order}])
            columns[order] = groups[0]
        rows = usage_of(self.tenant, said.get("since"), said.get("until")).order_by().values(*groups)
        summed = rows.annotate(**{f"sum_{name}": Sum(name) for name in AMOUNTS})
        return self.page(summed, shapes.UsageQuery, _shown, tie=groups[0], more_ties=groups[1:], columns=columns)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("sum_"): value for name, value in row.items()}
