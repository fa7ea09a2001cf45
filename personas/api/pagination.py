"""Lists, a page at a time, by cursor: the rows that come and go meanwhile neither repeat nor hide others."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from personas.api.problems import ErrorItem, InvalidInput, shorten
from personas.characters import UNSTORABLE

PAGE_SIZE = 50
MAX_PAGE_SIZE = 200
MAX_OFFSET = 1_000_000
MAX_CURSOR_CHARS = 1_000


class Pages(CursorPagination):
    """`page_size` and `cursor`; a cursor holds a place in the order, never a row's id."""

    page_size = PAGE_SIZE
    page_size_query_param = "page_size"
    max_page_size = MAX_PAGE_SIZE
    # None: rows that share a place are counted however many there are, else a page would repeat for ever.
    offset_cutoff = None  # type: ignore[assignment]

    def __init__(self, ordering: tuple[str, ...]) -> None:
        super().__init__()
        self.ordering = ordering

    def get_ordering(self, request: Request, queryset: QuerySet[Any], view: Any) -> tuple[str, ...]:
        return tuple(self.ordering)

    def decode_cursor(self, request: Request) -> Cursor | None:
        text = request.query_params.get(self.cursor_query_param, "")
        try:
            cursor = super().decode_cursor(request) if len(text) <= MAX_CURSOR_CHARS else None
        except Exception:
            raise _no_cursor(text) from None
        if text and (
            cursor is None or not 0 <= cursor.offset <= MAX_OFFSET or UNSTORABLE.search(str(cursor.position or ""))
        ):
            raise _no_cursor(text)
        return cursor

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any] | None:
        try:
            return super().paginate_queryset(queryset, request, view)
        except (ValidationError, ValueError, TypeError, OverflowError):
            text = request.query_params.get(self.cursor_query_param, "")
            if not text:
                raise
            raise _no_cursor(text) from None


def _no_cursor(text: str) -> InvalidInput:
    return InvalidInput([ErrorItem(field="cursor", expected="a cursor from `next` or `previous`", found=shorten(text))])
