"""A model field for JSON that comes from clients and models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    _Base = models.Field[Any, Any]  # to the type checker it holds JSON, not text
else:
    _Base = models.TextField


class JSONText(_Base):
    """Any JSON value, kept as ASCII text.

    Prompts and answers may hold NUL and half characters, which PostgreSQL's jsonb refuses and which are harmless when
    escaped. Nothing here is ever searched by its inside.
    """

    def from_db_value(self, value: str | None, *_args: Any) -> Any:
        return None if value is None else json.loads(value)

    def to_python(self, value: Any) -> Any:
        return value

    def get_prep_value(self, value: Any) -> str | None:
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def value_to_string(self, obj: models.Model) -> str:
        return self.get_prep_value(self.value_from_object(obj)) or ""
