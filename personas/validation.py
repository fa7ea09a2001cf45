"""A model's own rules, turned into refusals."""

import re
from typing import TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import Model

from personas.errors import InvalidField, InvalidSlug
from personas.models import SLUG_PATTERN, SLUG_RULE

Row = TypeVar("Row", bound=Model)


def saved(row: Row) -> Row:
    """Check the model's rules, save it, and return it. Raises InvalidField for the first rule it breaks."""
    try:
        row.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        found = "" if field == NON_FIELD_ERRORS else str(getattr(row, field))[:80]
        name = row._meta.verbose_name or "row"
        raise InvalidField(
            str(name) if field == NON_FIELD_ERRORS else field, " ".join(messages), found or "nothing"
        ) from None
    row.save()
    return row


def check_slug(field: str, slug: str) -> None:
    """Raises InvalidSlug when `slug` can't be part of a model name."""
    if not re.match(SLUG_PATTERN, slug):
        raise InvalidSlug(field, SLUG_RULE, slug[:80] or "nothing")
