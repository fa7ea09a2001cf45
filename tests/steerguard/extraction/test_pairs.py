import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerguard.extraction.pairs import Pair, PairsError, pairs_digest, read_pairs, read_questions, write_pairs

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


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text(text, "utf-8")
    return path


def test_a_csv_file_holds_the_same_pairs(tmp_path):
    text = 'negative,prompt,positive\r\nBad.,"How, are you?","Great!\nReally ""great""."\r\n\r\nNo.,Why?,Yes.\r\n'
    assert read_pairs(write_csv(tmp_path, text)) == [
        Pair("How, are you?", 'Great!\nReally "great".', "Bad."),
        Pair("Why?", "Yes.", "No."),
    ]


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        ("prompt,positive\na,b\n", 1, "negative", "expected a column of this name"),
        ("prompt,positive,negative,negative\na,b,c,d\n", 1, None, "names each column once"),
        ('prompt,positive,negative\na,"b\nb",c\na,b\n', 4, None, "expected 3 columns as in the header, found 2"),
        ("prompt,positive,negative\na,b,c\n ,b,c\n", 3, "prompt", "found only spaces"),
        ('prompt,positive,negative\na,"b"x,c\n', 2, None, "expected CSV"),
        ('prompt,positive,negative\na,b,"c\n', 2, None, "expected CSV"),
        ("prompt,positive,negative,note\na,b,c,d\n", 2, "note", "expected only prompt, positive, negative"),
        ("", None, None, "at least one pair"),
    ],
)
def test_a_bad_csv_line_is_refused_by_number_and_field(tmp_path, text, line, field, message):
    with pytest.raises(PairsError) as caught:
        read_pairs(write_csv(tmp_path, text))
    assert (caught.value.line, caught.value.field) == (line, field)
    assert message in str(caught.value)


def test_questions_are_lines_or_the_prompts_of_pairs(tmp_path):
    lines = tmp_path / "questions.txt"
    lines.write_text("How are you?\n\n  Why?  \nHow are you?\n")
    assert read_questions(lines) == ["How are you?", "Why?"]
    assert read_questions(write(tmp_path, GOOD, {"prompt": "Why?", "note": "more"}, GOOD)) == ["How are you?", "Why?"]
    assert read_questions(write_csv(tmp_path, "n,prompt\n1,Why?\n")) == ["Why?"]
    lines.write_text("\n")
    with pytest.raises(PairsError, match="at least one question"):
        read_questions(lines)


def test_pairs_that_were_written_are_read_again(tmp_path):
    pairs = [Pair("Warum?", "Darum \u2028 ja!\nSo.", 'Nein, "nie".'), Pair("a", "b", "c")]
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(write_pairs(pairs))
    assert read_pairs(path) == pairs
