"""Fields that take what their schema says and nothing else: no number for text, no "yes" for true, no unknown names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Q
from rest_framework import serializers

from personas.api.pagination import MAX_CURSOR_CHARS, MAX_PAGE_SIZE, PAGE_SIZE
from personas.api.problems import ErrorItem, InvalidInput, flatten

MAX_LIMIT = 2**63 - 1
MAX_TEXT_NUMBER = 2**31 - 1


class Text(serializers.CharField):
    """Text as it was sent: not trimmed, and not made of a number."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return str(super().to_internal_value(data))


class Flag(serializers.BooleanField):
    """true or false."""

    default_error_messages: ClassVar = {"invalid": "true or false"}

    def to_internal_value(self, data: Any) -> bool:
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class QueryFlag(serializers.BooleanField):
    """`true` or `false` in a query or a form."""

    default_error_messages: ClassVar = {"invalid": "true or false"}

    def to_internal_value(self, data: Any) -> bool:
        if data not in ("true", "false"):
            self.fail("invalid", input=data)
        return bool(data == "true")


class Whole(serializers.IntegerField):
    """A whole number, and no text of one."""

    default_error_messages: ClassVar = {"invalid": "a whole number"}

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return data


class WholeText(serializers.IntegerField):
    """A whole number of 0 or more in a query or a form, in plain digits."""

    default_error_messages: ClassVar = {"invalid": "a whole number"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(min_value=0, max_value=MAX_TEXT_NUMBER, **kwargs)

    def to_internal_value(self, data: Any) -> int:
        if not isinstance(data, str) or not data.isascii() or not data.isdigit() or len(data) > 10:
            self.fail("invalid")
        return int(data)


class Number(serializers.FloatField):
    """A finite number; forms and queries write one as text."""

    default_error_messages: ClassVar = {"invalid": "a finite number"}

    def __init__(self, *, from_text: bool = False, **kwargs: Any) -> None:
        self.from_text = from_text
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float | (str if self.from_text else float)):
            self.fail("invalid")
        try:
            value = float(data)
        except (ValueError, OverflowError):
            self.fail("invalid")
        if not math.isfinite(value):
            self.fail("invalid")
        return value


class Ordering(serializers.ChoiceField):
    """What a list may be ordered by; `-` in front turns it round."""

    def __init__(self, *names: str, default: str) -> None:
        choices = [sign + name for name in names for sign in ("", "-")]
        super().__init__(
            choices=choices, default=default, help_text=f"Order by {', '.join(names)}; `-` in front turns it round."
        )


class Input(serializers.Serializer[Any]):
    """What a body or a query may say. A name that it doesn't know is an error, not ignored."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if isinstance(data, Mapping):
            known = [name for name, field in self.fields.items() if not field.read_only]
            unknown = sorted((name for name in data if name not in known), key=str)
            if unknown:
                only = f"only the fields {', '.join(known)}" if known else "no fields"
                raise serializers.ValidationError({str(name)[:80]: [only] for name in unknown[:20]})
        return dict(super().to_internal_value(data))


class ListQuery(Input):
    """The part of a list's query that all lists have. Subclasses add fields, and an `ordering` by choice."""

    page_size = serializers.IntegerField(
        required=False, min_value=1, max_value=MAX_PAGE_SIZE, default=PAGE_SIZE, help_text="Rows a page"
    )
    cursor = Text(required=False, max_length=MAX_CURSOR_CHARS, help_text="From `next` or `previous` of another page")

    lookups: ClassVar[Mapping[str, str]] = {}
    """The ORM's name for each filter that is one comparison."""

    def filters(self) -> Q:
        """The conditions that were asked for."""
        said: dict[str, Any] = self.validated_data
        return Q(**{self.lookups[name]: value for name, value in said.items() if name in self.lookups})


def checked(shape: serializers.Serializer[Any], data: Any) -> dict[str, Any]:
    """What `shape` says that `data` is. Raises InvalidInput with every problem."""
    if not shape.is_valid():
        raise InvalidInput([_worded(item) for item in flatten(shape.errors, data)])
    return dict(shape.validated_data)


def _worded(item: ErrorItem) -> ErrorItem:
    """Django REST framework's sentences as what was expected."""
    said = item["expected"]
    for start, expected in _WORDS:
        if said.startswith(start):
            return {**item, "expected": expected}
    return item


_WORDS = (
    ("This field is required.", "a value"),
    ("This field may not be null.", "a value, not null"),
    ("This field may not be blank.", "text that is not empty"),
    ("Not a valid string.", "text"),
    ("Null characters are not allowed.", "text without NUL"),
    ("Invalid data. Expected a dictionary", "an object"),
)
