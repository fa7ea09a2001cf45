"""JSON that a stranger wrote: bounded, an object, no key twice, no NaN or Infinity."""

import json
from pathlib import Path
from typing import Any

from steerguard.adapters.problems import AdapterError, refusal


def read_object(path: Path, field: str, max_bytes: int) -> dict[str, Any]:
    """The object in a file. Raises AdapterError, which calls the file `field`."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise refusal(field, f"at most {max_bytes} bytes", f"{path.stat().st_size} bytes")
    return parse_object(data, field)


def parse_object(data: bytes, field: str) -> dict[str, Any]:
    """The object in `data`, which is UTF-8. Raises AdapterError."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise refusal(field, "each key once", f"{key[:80]!r} twice")
            found[key] = value
        return found

    def refuse_constant(name: str) -> None:
        raise refusal(field, "JSON, in which numbers are finite", name)

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=refuse_duplicates, parse_constant=refuse_constant)
    except AdapterError:
        raise
    except (ValueError, RecursionError) as error:
        raise refusal(field, "JSON in UTF-8", str(error)[:120] or "nothing") from None
    if not isinstance(value, dict):
        raise refusal(field, "a JSON object", type(value).__name__)
    return value
