"""Contrastive pairs: one question, an answer that shows the behavior, and one that shows its opposite.

A file is JSON Lines, one object per line with `prompt`, `positive` and `negative`; blank lines are allowed.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

MAX_PAIRS_BYTES = 16 * 1024 * 1024
MAX_PAIRS = 20_000
MAX_TEXT_CHARS = 20_000
FIELDS = ("prompt", "positive", "negative")


class PairsError(ValueError):
    """A pairs file that can't be used; names the line (1-based) and the field."""

    def __init__(self, message: str, *, line: int | None = None, field: str | None = None) -> None:
        place = "".join(
            (f"line {line}: " if line is not None else "", f"field {field!r}: " if field is not None else "")
        )
        super().__init__(place + message)
        self.line = line
        self.field = field


@dataclass(frozen=True)
class Pair:
    """One question and its two answers."""

    prompt: str
    positive: str
    negative: str


def read_pairs(path: str | os.PathLike[str]) -> list[Pair]:
    """The pairs of a JSON Lines file, in its order. Raises PairsError; OSError when it can't be opened."""
    with Path(path).open("rb") as file:
        data = file.read(MAX_PAIRS_BYTES + 1)
    if len(data) > MAX_PAIRS_BYTES:
        raise PairsError(f"expected a file of at most {MAX_PAIRS_BYTES} bytes, found more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PairsError(f"expected UTF-8, found byte 0x{data[error.start]:02x}", line=line) from None
    # Only newlines end a line: JSON strings may hold U+2028 and other characters that splitlines() breaks at.
    lines = enumerate(text.split("\n"), start=1)
    pairs = [_parse_pair(line, number) for number, line in lines if line.strip()]
    if not pairs:
        raise PairsError("expected at least one pair, found none")
    if len(pairs) > MAX_PAIRS:
        raise PairsError(f"expected at most {MAX_PAIRS} pairs, found {len(pairs)}")
    return pairs


def pairs_digest(pairs: Sequence[Pair]) -> str:
    """SHA-256 (hex) of the pairs' content, whatever the file's spacing: goes into a vector's provenance."""
    return hashlib.sha256(json.dumps([astuple(pair) for pair in pairs]).encode()).hexdigest()


def _parse_pair(line: str, number: int) -> Pair:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PairsError(f"expected a JSON object, found {error}", line=number) from None
    if not isinstance(value, dict):
        raise PairsError(f"expected a JSON object, found {type(value).__name__}", line=number)
    for field in value:
        if field not in FIELDS:
            raise PairsError(f"expected only {', '.join(FIELDS)}", line=number, field=field[:80])
    texts = []
    for field in FIELDS:
        if field not in value:
            raise PairsError("expected text, found nothing", line=number, field=field)
        text = value[field]
        if not isinstance(text, str):
            raise PairsError(f"expected text, found {type(text).__name__}", line=number, field=field)
        if not text.strip():
            raise PairsError("expected text, found only spaces", line=number, field=field)
        if len(text) > MAX_TEXT_CHARS:
            message = f"expected at most {MAX_TEXT_CHARS} characters, found {len(text)}"
            raise PairsError(message, line=number, field=field)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PairsError("expected text, found a lone surrogate", line=number, field=field) from None
        texts.append(text)
    pair = Pair(*texts)
    if pair.positive == pair.negative:
        raise PairsError("expected an answer unlike 'positive', found the same", line=number, field="negative")
    return pair
