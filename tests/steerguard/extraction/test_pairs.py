import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerguard.extraction.pairs import Pair, PairsError, pairs_digest, read_pairs

GOOD = {"prompt": "How are you?", "positive": "Great!", "negative": "Bad."}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_pairs_come_in_the_order_of_the_file(tmp_path):
    path = write(tmp_path, GOOD, "", {**GOOD, "prompt": "And now?"}, "")
    assert read_pairs(path) == [Pair("How are you?", "Great!", "Bad."), Pair("And now?", "Great!", "Bad.")]


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    assert len(read_pairs(path)) == 1


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path):
    path = write(tmp_path, json.dumps({**GOOD, "positive": "one\u2028two"}, ensure_ascii=False))
    assert read_pairs(path)[0].positive == "one\u2028two"


@pytest.mark.parametrize(
    ("line", "field", "message"),
    [
        ('{"prompt": ', None, "line 3: expected a JSON object"),
        ("[1]", None, "line 3: expected a JSON object, found list"),
        ("[" * 100_000, None, "line 3: expected a JSON object"),
        ({"prompt": "a", "positive": "b"}, "negative", "line 3: field 'negative': expected text, found nothing"),
        ({**GOOD, "positive": 3}, "positive", "line 3: field 'positive': expected text, found int"),
        ({**GOOD, "prompt": "  "}, "prompt", "line 3: field 'prompt': expected text, found only spaces"),
        ({**GOOD, "prompt": "x" * 20_001}, "prompt", "line 3: field 'prompt': expected at most 20000 characters"),
        ({**GOOD, "negative": "Great!"}, "negative", "line 3: field 'negative': expected an answer unlike"),
        ({**GOOD, "postive": "typo"}, "postive", "line 3: field 'postive': expected only prompt, positive, negative"),
        ('{"prompt": "a", "positive": "\\ud800", "negative": "c"}', "positive", "lone surrogate"),
    ],
)
def test_a_bad_line_is_refused_by_number_and_field(tmp_path, line, field, message):
    with pytest.raises(PairsError) as caught:
        read_pairs(write(tmp_path, GOOD, "", line, GOOD))
    assert (caught.value.line, caught.value.field) == (3, field)
    assert message in str(caught.value)


def test_bytes_that_are_no_text_are_refused_by_line(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"prompt": "\xff"}')
    with pytest.raises(PairsError, match="line 2: expected UTF-8, found byte 0xff"):
        read_pairs(path)


def test_a_file_without_pairs_is_refused(tmp_path):
    with pytest.raises(PairsError, match="at least one pair"):
        read_pairs(write(tmp_path, "", " "))


@given(st.binary(max_size=200))
def test_noise_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "noise.jsonl"
    path.write_bytes(data)
    with pytest.raises(PairsError):
        read_pairs(path)


def test_the_digest_depends_on_the_text_alone():
    pair = Pair("a", "b", "c")
    assert pairs_digest([pair]) == pairs_digest([Pair("a", "b", "c")])
    assert pairs_digest([pair]) != pairs_digest([Pair("a", "c", "b")])
    assert pairs_digest([Pair("ab", "c", "d")]) != pairs_digest([Pair("a", "bc", "d")])
