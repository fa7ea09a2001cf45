"""JSON that a stranger wrote: bounded, an object, no key twice, no NaN or Infinity."""

from pathlib import Path
from typing import Any

from steerguard.adapters.problems import refusal
from steerguard.vectors import VectorError, json_text


def read_object(path: Path, field: str, max_bytes: int) -> dict[str, Any]:
    """The object in a file. Raises AdapterError, which calls the file `field`."""
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise refusal(field, f"at most {max_bytes} bytes", f"{path.stat().st_size} bytes")
    return parse_object(data, field)


def parse_object(data: bytes, field: str) -> dict[str, Any]:
    """The object in `data`, which is UTF-8. Raises AdapterError."""
    try:
        return json_text.parse_object(field, data)
    except VectorError as error:
        raise refusal(error.field, error.expected, error.found) from None
