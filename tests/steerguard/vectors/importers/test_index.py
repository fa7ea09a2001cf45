"""Every tool's vectors end up on the block they were measured at.

A small random Llama in float32 reads two prompts. What its blocks put out, by forward hooks, is what a vector has to be
compared with; each tool's file is made from what that tool looks at (`hidden_states`, llama.cpp's `l_out`, hooks) under
the number that the tool gives it. Then the file is imported, and each array has to be its block's own, and no other's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from steerguard.vectors import SteeringVector, write_vector
from steerguard.vectors.importers import ImportRequest, Source, import_vector
from tests.steerguard.vectors.importers import tools

NUM_LAYERS = 6
HIDDEN_SIZE = 24
POSITIVE, NEGATIVE = [3, 14, 15, 92, 65], [35, 89, 79, 32, 38]

Row = np.ndarray


@dataclass(frozen=True)
class Measured:
    """The last token's positive minus negative activation."""

    blocks: list[Row]
    """Of what each block puts out, by hooks."""
    hidden_states: list[Row]
    """Of Hugging Face's `hidden_states`: embeddings first, the last one after the final norm."""


@pytest.fixture(scope="module")
def measured() -> Measured:
    torch.manual_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96,
            hidden_size=HIDDEN_SIZE,
            intermediate_size=2 * HIDDEN_SIZE,
            num_hidden_layers=NUM_LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.3,
        )
    ).eval()
    sides = []
    for tokens in (POSITIVE, NEGATIVE):
        with torch.no_grad(), recorded(model) as outputs:
            states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
        sides.append(([output[0, -1] for output in outputs], [state[0, -1] for state in states]))
    blocks, hidden_states = (
        [(positive - negative).numpy() for positive, negative in zip(*pair, strict=True)]
        for pair in zip(*sides, strict=True)
    )
    return Measured(blocks, hidden_states)


@contextmanager
def recorded(model: LlamaForCausalLM) -> Iterator[list[torch.Tensor]]:
    """What the blocks put out, in order."""
    outputs: list[torch.Tensor] = []

    def record(_block: object, _inputs: object, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_hook(record) for block in model.model.layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def unit(row: Row) -> Row:
    return (row / np.linalg.norm(row)).astype(np.float32)


def by_hidden_state(states: list[Row], first: int = 0) -> dict[int, Row]:
    """repeng's and CAST's numbers: layer N is what hidden_states[N + 1] says."""
    return {number: unit(states[number + 1]) for number in range(first, NUM_LAYERS)}


# For each format: its file, the blocks that are to come out of it, and what the request has to say.
CASES: dict[str, tuple[Callable[[Measured], bytes], range, dict[str, object]]] = {
    "canonical": (
        lambda m: write_vector(SteeringVector(dict(enumerate(m.blocks)), HIDDEN_SIZE)),
        range(NUM_LAYERS),
        {},
    ),
    "repeng": (lambda m: tools.repeng(by_hidden_state(m.hidden_states, first=1)), range(1, NUM_LAYERS), {}),
    "llama.cpp": (
        lambda m: tools.llama_cpp({il + 1: unit(m.blocks[il]) for il in range(NUM_LAYERS - 1)}),
        range(NUM_LAYERS - 1),
        {},
    ),
    "easysteer": (
        lambda m: tools.easysteer({layer: unit(row) for layer, row in enumerate(m.blocks)}),
        range(NUM_LAYERS),
        {},
    ),
    "easysteer, bare": (lambda m: tools.saved(torch.from_numpy(m.blocks[2])), range(2, 3), {"layer": 2}),
    "steering-vectors": (
        lambda m: tools.steering_vectors(dict(enumerate(m.blocks))),
        range(NUM_LAYERS),
        {},
    ),
    "hidden-directions": (
        lambda m: tools.saved(torch.from_numpy(np.stack(m.hidden_states[1:]))),
        range(NUM_LAYERS),
        {},
    ),
    "hidden-directions, one row": (
        lambda m: tools.saved(torch.from_numpy(m.hidden_states[1:][3])),
        range(3, 4),
        {"layer": 3, "format": "hotwire"},
    ),
    "persona-vectors": (
        lambda m: tools.saved(torch.from_numpy(np.stack(m.hidden_states))),
        range(NUM_LAYERS),
        {},
    ),
    "cast": (lambda m: tools.cast(by_hidden_state(m.hidden_states)), range(NUM_LAYERS), {}),
    "npy, by block": (lambda m: tools.npy(np.stack(m.blocks)), range(NUM_LAYERS), {}),
    "npy, by hidden state": (lambda m: tools.npy(np.stack(m.hidden_states)), range(NUM_LAYERS), {}),
    "npy, the first blocks": (lambda m: tools.npy(np.stack(m.blocks[:4])), range(4), {"rows": "blocks"}),
    "npy, one row": (lambda m: tools.npy(m.blocks[4]), range(4, 5), {"layer": 4}),
}
AFTER_FINAL_NORM = {"repeng", "hidden-directions", "persona-vectors", "cast", "npy, by hidden state"}


@pytest.mark.parametrize("case", CASES)
def test_a_vector_lands_on_the_block_it_was_measured_at(case: str, measured: Measured) -> None:
    write, blocks, said = CASES[case]
    imported = import_vector(
        Source(write(measured)),
        ImportRequest(hidden_size=HIDDEN_SIZE, num_layers=NUM_LAYERS, **said),  # type: ignore[arg-type]
    )
    assert imported.format == case.partition(",")[0]
    assert list(imported.vector.layers) == list(blocks)
    last = NUM_LAYERS - 1
    for block, row in imported.vector.layers.items():
        if case in AFTER_FINAL_NORM and block == last:
            continue
        near = [other for other in range(NUM_LAYERS) if np.allclose(unit(row), unit(measured.blocks[other]), atol=1e-4)]
        assert near == [block]
    if case in AFTER_FINAL_NORM:
        assert np.allclose(unit(imported.vector.layers[last]), unit(measured.hidden_states[-1]), atol=1e-4)
    assert any("final norm" in warning for warning in imported.warnings) == (case in AFTER_FINAL_NORM)


def test_as_llama_cpp_applies_them_they_are_one_block_later(measured: Measured) -> None:
    file = tools.llama_cpp({il + 1: unit(measured.blocks[il]) for il in range(NUM_LAYERS - 1)})
    applied = import_vector(
        Source(file), ImportRequest(hidden_size=HIDDEN_SIZE, num_layers=NUM_LAYERS, index="applied")
    )
    assert list(applied.vector.layers) == list(range(1, NUM_LAYERS))
    assert np.allclose(applied.vector.layers[3], unit(measured.blocks[2]))


def test_blocks_can_be_told_apart_here(measured: Measured) -> None:
    """What the tests above rest on."""
    for block in range(NUM_LAYERS - 1):
        assert np.allclose(measured.blocks[block], measured.hidden_states[block + 1], atol=1e-5)
        assert not np.allclose(unit(measured.blocks[block]), unit(measured.blocks[block + 1]), atol=1e-2)
    assert not np.allclose(measured.blocks[-1], measured.hidden_states[-1], atol=1e-2)
