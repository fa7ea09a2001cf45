"""Contrastive pairs: one question, an answer that shows the behavior, and one that shows its opposite.

A file is JSON Lines, one object per line with `prompt`, `positive` and `negative` (blank lines are allowed), or
CSV with a header of these three. A questions file is any of these, of which only `prompt` is read, or plain text
with one question per line.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TypeVar

MAX_PAIRS_BYTES = 16 * 1024 * 1024
MAX_PAIRS = 20_000
MAX_TEXT_CHARS = 20_000
FIELDS = ("prompt", "positive", "negative")

Item = TypeVar("Item")


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
    """The pairs of a JSON Lines file, or of a CSV file (by its name), in the file's order.

    Raises PairsError; OSError when it can't be opened.
    """
    pairs = [_checked_pair(row, number) for number, row in _rows(Path(path), FIELDS)]
    return _counted(pairs, "pair")


def read_questions(path: str | os.PathLike[str]) -> list[str]:
    """The distinct questions of a `.jsonl` or `.csv` file's `prompt`, or of a text file's lines, in its order.

    Raises PairsError; OSError when it can't be opened.
    """
    path = Path(path)
    if path.suffix.lower() in (".jsonl", ".csv"):
        questions = [_checked_text(row, "prompt", number) for number, row in _rows(path, ("prompt",))]
    else:
        lines = enumerate(_read_text(path).split("\n"), start=1)
        questions = [
            _checked_text({"prompt": line.strip()}, "prompt", number) for number, line in lines if line.strip()
        ]
    return _counted(list(dict.fromkeys(questions)), "question")


def write_pairs(pairs: Sequence[Pair]) -> bytes:
    """The JSON Lines file that `read_pairs` reads as these pairs."""
    return "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs).encode()


def pairs_digest(pairs: Sequence[Pair]) -> str:
    """SHA-256 (hex) of the pairs' content, whatever the file's spacing: goes into a vector's provenance."""
    return hashlib.sha256(json.dumps([astuple(pair) for pair in pairs]).encode()).hexdigest()


def _counted(items: list[Item], what: str) -> list[Item]:
    if not items:
        raise PairsError(f"expected at least one {what}, found none")
    if len(items) > MAX_PAIRS:
        raise PairsError(f"expected at most {MAX_PAIRS} {what}s, found {len(items)}")
    return items


def _read_text(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(MAX_PAIRS_BYTES + 1)
    if len(data) > MAX_PAIRS_BYTES:
        raise PairsError(f"expected a file of at most {MAX_PAIRS_BYTES} bytes, found more")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PairsError(f"expected UTF-8, found byte 0x{data[error.start]:02x}", line=line) from None


def _rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The file's objects, each with the number of the line it begins on."""
    text = _read_text(path)
    if path.suffix.lower() == ".csv":
        yield from _csv_rows(text, needed)
        return
    # Only newlines end a line: JSON strings may hold U+2028 and other characters that splitlines() breaks at.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _parse_object(line, number)


def _csv_rows(text: str, needed: Sequence[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise PairsError(f"expected CSV, found {error}", line=number) from None
        if not row:
            continue
        if header is None:
            header = [name.strip() for name in row]
            if len(set(header)) != len(header):
                raise PairsError(f"expected a header that names each column once, found {header}", line=number)
            for field in needed:
                if field not in header:
                    raise PairsError(f"expected a column of this name, found {header}", line=number, field=field)
            continue
        if len(row) != len(header):
            raise PairsError(f"expected {len(header)} columns as in the header, found {len(row)}", line=number)
        yield number, dict(zip(header, row, strict=True))


def _parse_object(line: str, number: int) -> Mapping[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PairsError(f"expected a JSON object, found {error}", line=number) from None
    if not isinstance(value, dict):
        raise PairsError(f"expected a JSON object, found {type(value).__name__}", line=number)
    return value


def _checked_pair(row: Mapping[str, object], number: int) -> Pair:
    for field in row:
        if field not in FIELDS:
            raise PairsError(f"expected only {', '.join(FIELDS)}", line=number, field=field[:80])
    pair = Pair(*(_checked_text(row, field, number) for field in FIELDS))
    if pair.positive == pair.negative:
        raise PairsError("expected an answer unlike 'positive', found the same", line=number, field="negative")
    return pair


def _checked_text(row: Mapping[str, object], field: str, number: int) -> str:
    if field not in row:
        raise PairsError("expected text, found nothing", line=number, field=field)
    text = row[field]
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
    return text
