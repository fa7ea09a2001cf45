"""JSON from files that nobody vouches for: an object, in UTF-8, in which no key comes twice."""

import json

from steerguard.vectors.vector import VectorError


def parse_object(field: str, text: bytes | str) -> dict[str, object]:
    """The JSON object in `text`. Raises VectorError, which names `field`, for anything else.

    Refuses what JSON parsers otherwise let pass: a key that comes twice, and NaN or Infinity.
    """

    def refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise VectorError(field, "each key once", f"{key[:80]!r} twice")
            found[key] = value
        return found

    def refuse_constant(name: str) -> object:
        raise VectorError(field, "finite numbers", name)

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        value = json.loads(text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)
    except VectorError:
        raise
    except (ValueError, RecursionError) as error:
        raise VectorError(field, "JSON in UTF-8", str(error)[:120] or "nothing") from None
    if not isinstance(value, dict):
        raise VectorError(field, "a JSON object", type(value).__name__)
    return value
