"""The bank: rows come in, the least recently used go, what is in use stays, and the buffers never move."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steerguard.bank import BankFull, SteeringBank
from steerguard.blend import UNSTEERED

WIDTH = 4


def make_bank(max_rows: int = 3, max_slots: int = 6, blocks: tuple[int, ...] = (0, 1, 2)) -> SteeringBank:
    return SteeringBank(
        blocks=blocks,
        hidden_size=WIDTH,
        max_rows=max_rows,
        max_slots=max_slots,
        max_tokens=16,
        dtype=torch.float32,
        device="cpu",
    )


def row(*blocks: int, value: float = 1.0) -> dict[int, np.ndarray]:
    return {b: np.full(WIDTH, value + b, np.float32) for b in blocks}


def added(bank: SteeringBank, digest: str, position: int) -> list[float]:
    """What the block at `position` of the bank's blocks would add to a token of the row."""
    return bank.bank[bank.slots[position, bank.row(digest)]].tolist()


def test_a_placed_row_is_what_its_blocks_add() -> None:
    bank = make_bank()
    bank.place({"a": row(0, 2, value=5.0)}, keep={"a"})
    assert added(bank, "a", 0) == [5.0] * WIDTH
    assert added(bank, "a", 1) == [0.0] * WIDTH
    assert added(bank, "a", 2) == [7.0] * WIDTH


def test_unsteered_tokens_add_nothing_whatever_the_bank_holds() -> None:
    bank = make_bank()
    bank.place({"a": row(0, 1, 2)}, keep={"a"})
    assert all(added(bank, UNSTEERED, position) == [0.0] * WIDTH for position in range(3))


def test_the_least_recently_used_row_goes_first() -> None:
    bank = make_bank()
    for digest in "abc":
        bank.place({digest: row(0)}, keep={digest})
    bank.row("a")
    bank.place({"d": row(0, value=9.0)}, keep={"d"})
    assert (bank.has("a"), bank.has("b"), bank.has("c"), bank.evictions) == (True, False, True, 1)
    assert added(bank, "d", 0) == [9.0] * WIDTH


def test_rows_of_the_step_at_hand_are_never_evicted() -> None:
    bank = make_bank()
    for digest in "abc":
        bank.place({digest: row(0)}, keep={digest})
    with pytest.raises(BankFull):
        bank.place({"d": row(0)}, keep={"a", "b", "c", "d"})
    assert all(bank.has(digest) for digest in "abc")


def test_a_row_with_other_blocks_leaves_nothing_of_the_one_before() -> None:
    bank = make_bank(max_rows=1)
    bank.place({"a": row(0, 1)}, keep={"a"})
    bank.place({"b": row(2)}, keep={"b"})
    assert [added(bank, "b", position) for position in (0, 1)] == [[0.0] * WIDTH] * 2


def test_blocks_of_another_pipeline_stage_are_passed_over() -> None:
    bank = make_bank(blocks=(4, 5))
    bank.place({"a": row(0, 5)}, keep={"a"})
    assert added(bank, "a", 0) == [0.0] * WIDTH
    assert added(bank, "a", 1) == [6.0] * WIDTH


def test_tokens_of_the_step_before_add_nothing() -> None:
    bank = make_bank()
    bank.write_rows(np.array([1, 2, 3], np.int32))
    bank.write_rows(np.array([2], np.int32))
    assert bank.row_of_token.tolist() == [2] + [0] * 15
    bank.clear_rows()
    assert not bank.row_of_token.any()


def test_the_buffers_stay_where_they_are() -> None:
    bank = make_bank()
    buffers = (bank.bank, bank.slots, bank.row_of_token)
    addresses = [buffer.data_ptr() for buffer in buffers]
    for i in range(20):
        bank.place({f"{i}": row(i % 3)}, keep={f"{i}"})
        bank.write_rows(np.array([bank.row(f"{i}")], np.int32))
    assert [buffer.data_ptr() for buffer in (bank.bank, bank.slots, bank.row_of_token)] == addresses
    assert bank.rows_in_use == 3


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sets(st.integers(0, 2), min_size=1)), max_size=40))
def test_any_sequence_of_steps_finds_its_own_rows(steps: list[tuple[str, set[int]]]) -> None:
    bank = make_bank()
    for name, blocks in steps:
        digest = f"{name}{sorted(blocks)}"
        content = row(*blocks, value=float(ord(name)))
        bank.place({digest: content}, keep={digest})
        for position in range(3):
            expected = content[position].tolist() if position in content else [0.0] * WIDTH
            assert added(bank, digest, position) == expected
