"""adapter_model.safetensors, one thing wrong at a time."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steerguard.adapters import safetensors_file
from tests.steerguard.adapters.conftest import Check
from tests.steerguard.adapters.making import (
    WEIGHTS,
    Tensors,
    edit_config,
    edit_tensors,
    name_of,
    raw_safetensors,
    save_adapter,
    save_base,
)

Q_A = name_of(0, "self_attn.q_proj", "A")
Q_B = name_of(0, "self_attn.q_proj", "B")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("half", ["A", "B"])
def test_a_number_that_is_not_finite_is_found(
    adapter: Path, check: Check, value: float, dtype: torch.dtype, half: str
) -> None:
    """A single NaN empties the answers of whoever gets the cache blocks after it."""
    name = name_of(3, "mlp.down_proj", half)

    def poison(tensors: Tensors) -> Tensors:
        tensors[name][-1, -1] = value
        return {n: t.to(dtype) for n, t in tensors.items()}

    edit_tensors(adapter, poison)
    assert check(adapter) == {name: ("finite values", "1 NaN or infinite")}


def test_a_number_is_found_behind_the_first_piece(adapter: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "PIECE_ITEMS", 7)
    assert check(adapter) == {}

    def poison(tensors: Tensors) -> None:
        tensors[Q_A].view(-1)[500] = float("nan")
        tensors[Q_A].view(-1)[3] = float("nan")

    edit_tensors(adapter, poison)
    assert check(adapter) == {Q_A: ("finite values", "2 NaN or infinite")}


def test_a_number_that_the_base_models_dtype_can_not_hold_is_found(base: Path, tmp_path: Path, check: Check) -> None:
    half = save_base(tmp_path / "half", dtype="float16")
    adapter = save_adapter(half, tmp_path / "adapter", target_modules=["q_proj"])
    assert check(adapter, model=half) == {}
    edit_tensors(adapter, lambda tensors: {n: t.float() for n, t in tensors.items()})
    edit_tensors(adapter, lambda tensors: tensors[Q_A].fill_(1e5))
    assert check(adapter, model=half)[Q_A] == ("values that stay finite in the base's dtype, float16", "1e+05")


def test_an_alpha_that_makes_numbers_infinite_is_found(adapter: Path, check: Check) -> None:
    edit_config(adapter, lora_alpha=10**40)
    problems = check(adapter)
    assert Q_B in problems
    assert "alpha's" in problems[Q_B][1]


def renamed(old: str, new: str) -> Any:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


CHANGES: dict[str, tuple[Any, str, str]] = {
    "a B is missing": (lambda t: t.pop(Q_B), Q_A, "only lora_A"),
    "an A is missing": (lambda t: t.pop(Q_A), Q_B, "only lora_B"),
    "another rank of B": (lambda t: t.update({Q_B: t[Q_B][:, :2]}), Q_B, "2"),
    "another width": (lambda t: t.update({Q_A: t[Q_A][:, :64]}), Q_A, "[4, 64]"),
    "another height": (lambda t: t.update({Q_B: t[Q_B][:64]}), Q_B, "[64, 4]"),
    "transposed": (lambda t: t.update({Q_A: t[Q_A].T}), Q_A, "[128, 4]"),
    "three dimensions": (lambda t: t.update({Q_A: t[Q_A][None]}), Q_A, "[1, 4, 128]"),
    "integers": (lambda t: t.update({Q_A: t[Q_A].to(torch.int8)}), Q_A, "I8"),
    "doubles": (lambda t: t.update({Q_A: t[Q_A].double()}), Q_A, "F64"),
    "eight-bit floats": (lambda t: t.update({Q_A: t[Q_A].to(torch.float8_e4m3fn)}), Q_A, "F8_E4M3"),
    "a layer too many": (renamed("layers.3.", "layers.4."), "layers", "4"),
    "a layer far away": (renamed("layers.3.", "layers.40000000000."), "", "layers.40000000000.mlp.down_proj"),
    "no prefix": (renamed("base_model.model.", ""), "", "a name with something else"),
    "an adapter's name": (renamed("lora_A.weight", "lora_A.default.weight"), "", "a name with something else"),
    "a module that isn't there": (renamed("q_proj", "qq_proj"), "", "self_attn.qq_proj"),
    "a magnitude of DoRA": (lambda t: t.update({Q_A[:-13] + "lora_magnitude_vector": torch.ones(128)}), "", "DoRA"),
    "a whole module": (lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(4, 4)}), "", "whole module"),
    "a trained copy": (
        lambda t: t.update({"base_model.model.model.layers.0.mlp.up_proj.base_layer.weight": torch.ones(4, 4)}),
        "", "another name",
    ),
    "a bias": (lambda t: t.update({Q_B.replace("weight", "bias"): torch.ones(128)}), "", "a bias"),
    "an embedding's form": (
        lambda t: t.update({Q_A[:-14] + ".lora_embedding_A": torch.ones(4, 128)}), "", "another name"),
    "nothing at all": (lambda t: {}, WEIGHTS, "0 tensors"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "field", "found"), CHANGES.values(), ids=CHANGES)
def test_a_wrong_tensor_is_named(adapter: Path, check: Check, change: Any, field: str, found: str) -> None:
    edit_tensors(adapter, change)
    problems = check(adapter)
    assert any(field in name and found in text for name, (_expected, text) in problems.items()), problems


HEADER: dict[str, Any] = {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
DATA = b"\0" * 8

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "no length": b"1234567",
    "a pickle": b"\x80\x04}.        ",
    "a length beyond the file": struct.pack("<Q", 100) + b"{}",
    "a huge length": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": raw_safetensors(b"nonsense"),
    "a list": raw_safetensors([]),
    "a name twice": raw_safetensors(b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{}}', DATA),
    "truncated": raw_safetensors(HEADER, DATA[:-1]),
    "trailing bytes": raw_safetensors(HEADER, DATA + b"x"),
    "overlapping": raw_safetensors({**HEADER, "y": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, DATA),
    "the same place": raw_safetensors({**HEADER, "y": HEADER["x"]}, DATA),
    "a gap": raw_safetensors({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, DATA),
    "backwards": raw_safetensors({"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, DATA),
    "a size that isn't the shape's": raw_safetensors({"x": {**HEADER["x"], "shape": [3]}}, DATA),
    "an overflowing shape": raw_safetensors({"x": {**HEADER["x"], "shape": [2**62, 2**62]}}, DATA),
    "a negative shape": raw_safetensors({"x": {**HEADER["x"], "shape": [-2]}}, DATA),
    "a negative offset": raw_safetensors({"x": {**HEADER["x"], "data_offsets": [-8, 0]}}, DATA),
    "an unknown dtype": raw_safetensors({"x": {**HEADER["x"], "dtype": "F128"}}, DATA),
    "fractions": raw_safetensors({"x": {**HEADER["x"], "shape": [2.0]}}, DATA),
    "true": raw_safetensors({"x": {**HEADER["x"], "shape": [True, 2]}}, DATA),
    "an entry that is none": raw_safetensors({"x": 7}),
    "no name": raw_safetensors({"": HEADER["x"]}, DATA),
    "a name with a newline": raw_safetensors({"x\n": HEADER["x"]}, DATA),
    "metadata that is none": raw_safetensors({"__metadata__": {"format": 7}, **HEADER}, DATA),
    "deep": raw_safetensors(b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "many": raw_safetensors({f"x{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_001)}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused(adapter: Path, check: Check, data: bytes) -> None:
    (adapter / WEIGHTS).write_bytes(data)
    problems = check(adapter)
    assert problems
    json.dumps(problems).encode()


def test_a_file_too_large_is_not_read(adapter: Path, check: Check) -> None:
    with (adapter / WEIGHTS).open("r+b") as file:
        file.truncate(2 * 1024**3 + 1)  # sparse: it takes no room
    assert check(adapter)[WEIGHTS] == ("at most 2147483648 bytes", "2147483649 bytes")


def test_a_wrong_base_lists_each_kind_of_problem_once_and_never_too_many(adapter: Path, check: Check) -> None:
    edit_tensors(adapter, lambda tensors: {f"junk{i}.lora_A.weight": torch.ones(1) for i in range(500)})
    problems = check(adapter)
    assert len(problems) <= 101


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_checked_without_a_failure(adapter: Path, check: Check, data: st.DataObject) -> None:
    """Bytes changed, cut or inserted, most of them in the header: there is an answer, and never an exception."""
    good = (adapter / WEIGHTS).with_suffix(".good")
    if not good.exists():
        good.write_bytes((adapter / WEIGHTS).read_bytes())
    content = bytearray(good.read_bytes())
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, data.draw(st.sampled_from([16, header_end, len(content) - 1]))))
        how = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if how == "set" and at < len(content):
            content[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del content[at : at + data.draw(st.integers(1, 40))]
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=12))
        header_end = min(header_end, len(content) - 1)
        if len(content) < 20:
            break
    (adapter / WEIGHTS).write_bytes(bytes(content))
    for field, (expected, found) in check(adapter).items():
        assert field and expected and isinstance(found, str)
