"""A model's own rules, turned into refusals."""

import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db.models import CharField, JSONField, Model, TextField

from personas.characters import NAME_RULE, STORABLE_RULE, UNFIT_FOR_NAMES, UNSTORABLE
from personas.errors import InvalidField, InvalidSlug
from personas.models import SLUG_PATTERN, SLUG_RULE

Row = TypeVar("Row", bound=Model)


def saved(row: Row) -> Row:
    """Check the model's rules, save it, and return it. Raises InvalidField for the first rule it breaks."""
    _check_characters(row)  # first, because the model's rules ask the database, which can't be asked with every text
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


def _check_characters(row: Model) -> None:
    """Raises InvalidField, which names the character instead of showing it."""
    for field in row._meta.concrete_fields:
        if not isinstance(field, CharField | TextField | JSONField):
            continue
        unfit, rule = (UNFIT_FOR_NAMES, NAME_RULE) if field.name == "name" else (UNSTORABLE, STORABLE_RULE)
        for text in _texts(getattr(row, field.attname)):
            if found := unfit.search(text):
                raise InvalidField(field.name, f"text with {rule}", f"U+{ord(found[0]):04X}")


def _texts(value: object) -> Iterator[str]:
    """Every text in a field's value: itself, or the keys and values of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
