"""Lists in OpenAI's shape: `limit`, `after` (the last id of the page before), and whether there is more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from django.db.models import Model, QuerySet

from inference.gateway.call import Call
from inference.gateway.errors import InvalidRequest
from jobs.database import in_database
from jobs.errors import UnknownObject


@dataclass(frozen=True, slots=True)
class PageQuery:
    """What the query string asks for."""

    limit: int
    after: str | None
    newest_first: bool
    more: Mapping[str, str]


def read_query(call: Call, *, max_limit: int = 100, limit: int = 20) -> PageQuery:
    """Raises InvalidRequest."""
    said = parse_qs(call.exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = {name: values[-1] for name, values in said.items()}
    asked = query.pop("limit", str(limit))
    if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= max_limit:
        raise InvalidRequest(f"'limit' must be a number from 1 to {max_limit}.", param="limit")
    if (order := query.pop("order", "desc")) not in ("asc", "desc"):
        raise InvalidRequest("'order' must be 'asc' or 'desc'.", param="order")
    return PageQuery(int(asked[:9]), query.pop("after", None), order == "desc", query)


async def list_page(
    query: PageQuery,
    rows: QuerySet[Any],
    *,
    noun: str,
    find: Callable[[str], Model | None],
    shape: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """A page of `rows`; `find` looks up the one that it comes after. Raises UnknownObject."""

    def ask() -> list[dict[str, Any]]:
        found = rows
        if query.after is not None:
            if (last := find(query.after)) is None:
                raise UnknownObject(noun, query.after)
            found = found.filter(pk__lt=last.pk) if query.newest_first else found.filter(pk__gt=last.pk)
        ordered = found.order_by("-pk" if query.newest_first else "pk")
        return [shape(row) for row in ordered[: query.limit + 1]]

    page = await in_database(ask)
    data = page[: query.limit]
    ids = [row["id"] for row in (data[:1] + data[-1:])] or [None, None]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0],
        "last_id": ids[-1],
        "has_more": len(page) > query.limit,
    }
