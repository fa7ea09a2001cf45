import pytest

from steerguard.extraction.journal import Journal, digest_of


def test_answers_are_there_again(tmp_path):
    path = tmp_path / "work" / "answers.jsonl"
    journal = Journal(path)
    journal.put("a", {"text": "héllo"})
    journal.put("b", 3)
    journal.close()
    again = Journal(path)
    assert (again.get("a"), again.get("b"), again.get("c"), len(again)) == ({"text": "héllo"}, 3, None, 2)
    again.close()


@pytest.mark.parametrize("torn", [b'{"key": "c", "val', b'{"key": "c", "value": 1}', b"\xff\n", b"[]\n"])
def test_what_a_kill_left_unfinished_is_dropped_and_written_over(tmp_path, torn):
    path = tmp_path / "answers.jsonl"
    journal = Journal(path)
    journal.put("a", 1)
    journal.close()
    with path.open("ab") as file:
        file.write(torn)
    again = Journal(path)
    assert (again.get("a"), again.get("c")) == (1, None)
    again.put("d", 4)
    again.close()
    last = Journal(path)
    assert (last.get("a"), last.get("d"), len(last)) == (1, 4, 2)
    last.close()


def test_two_processes_can_not_have_one_file(tmp_path):
    journal = Journal(tmp_path / "answers.jsonl")
    with pytest.raises(RuntimeError, match="found it in use"):
        Journal(tmp_path / "answers.jsonl")
    journal.close()
    Journal(tmp_path / "answers.jsonl").close()


def test_a_question_is_the_same_in_any_order_of_keys():
    assert digest_of({"a": 1, "b": [2]}) == digest_of({"b": [2], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
