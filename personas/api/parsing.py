"""Bodies: bounded, UTF-8, and JSON that is strict and not deep, so that nothing behind here has to be afraid of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request

from personas.api.problems import TooLarge

MAX_JSON_BYTES = 1024 * 1024
MAX_DEPTH = 48
"""Below what the recursive readers and writers of JSON can take, above what a JSON schema needs."""


class OneFormat(BaseContentNegotiation):
    """Answers have one format each, whatever `Accept` says (RFC 9110 allows that)."""

    def select_parser(self, request: Request, parsers: Any) -> BaseParser | None:
        from rest_framework.utils.mediatypes import media_type_matches

        kind = request.content_type or ""
        return next((parser for parser in parsers if media_type_matches(parser.media_type, kind)), None)

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiJsonRenderer(JSONRenderer):
    """Plain JSON in UTF-8."""

    charset = None
    ensure_ascii = False


class StrictJsonParser(BaseParser):
    """JSON as RFC 8259 has it, at most MAX_JSON_BYTES and MAX_DEPTH deep."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        data = read_bounded(stream, MAX_JSON_BYTES)
        try:
            value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
        except UnicodeDecodeError:
            raise ParseError("The body is not UTF-8.") from None
        except RecursionError:
            raise ParseError(f"The JSON is deeper than {MAX_DEPTH} levels.") from None
        except ValueError as error:
            raise ParseError(f"The body is not JSON: {str(error)[:120]}") from None
        if is_deep(value):
            raise ParseError(f"The JSON is deeper than {MAX_DEPTH} levels.")
        return value


class YamlTextParser(BaseParser):
    """YAML as bytes: whoever reads it bounds what it may say."""

    media_type = "application/yaml"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        return read_bounded(stream, MAX_JSON_BYTES)


def read_bounded(stream: Any, at_most: int) -> bytes:
    """All of `stream`. Raises TooLarge."""
    data: bytes = stream.read(at_most + 1)
    if len(data) > at_most:
        raise TooLarge(f"The body is larger than {at_most} bytes.")
    return data


def is_deep(value: Any) -> bool:
    """Without recursion, of which deep values make too much."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
