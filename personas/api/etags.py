"""Conditional requests: `ETag`, `If-None-Match`, `If-Match` (RFC 9110, section 13). Tags are of the content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.utils.http import parse_etags
from rest_framework.request import Request
from rest_framework.utils.encoders import JSONEncoder

from personas.api.problems import PreconditionFailed


def etag_of(representation: Mapping[str, Any]) -> str:
    """A strong tag: equal answers have equal tags, whenever and wherever they were made."""
    text = json.dumps(representation, sort_keys=True, ensure_ascii=False, cls=JSONEncoder)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


def is_known(request: Request, etag: str) -> bool:
    """The caller has it already (`If-None-Match`)."""
    header = request.META.get("HTTP_IF_NONE_MATCH")
    return header is not None and etag in {tag.removeprefix("W/") for tag in _tags(header, etag)}


def check_match(request: Request, etag: str) -> None:
    """Raises PreconditionFailed when `If-Match` is there and names another state."""
    header = request.META.get("HTTP_IF_MATCH")
    if header is not None and etag not in _tags(header, etag):
        raise PreconditionFailed("It was changed since you read it: read it again.", headers={"ETag": etag})


def _tags(header: str, current: str) -> list[str]:
    return [current] if header.strip() == "*" else parse_etags(header)
