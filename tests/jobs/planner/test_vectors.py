"""Bytes of steering: those of the very buffers that the plugin makes."""

import pytest
import torch

from jobs.planner.errors import PlanError
from jobs.planner.shape import PRESETS
from jobs.planner.vectors import PHASES, SteeringBytes, steering_bytes
from steerguard.bank import SteeringBank

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def made(model: str, bytes_: SteeringBytes, max_batched_tokens: int) -> SteeringBank:
    """The bank as WorkerSteering makes it, without memory."""
    shape = PRESETS[model]
    return SteeringBank(
        blocks=range(shape.layers),
        hidden_size=shape.hidden,
        max_rows=bytes_.rows,
        max_slots=bytes_.rows * min(bytes_.blend_layers, shape.layers),
        max_tokens=max_batched_tokens,
        dtype=DTYPES[shape.dtype],
        device="meta",
    )


@pytest.mark.parametrize("model", sorted(PRESETS))
@pytest.mark.parametrize("max_seqs", [1, 50, 256])
@pytest.mark.parametrize("limit_layers", [True, False])
def test_allocates_what_the_plugin_allocates(model: str, max_seqs: int, limit_layers: bool) -> None:
    found = steering_bytes(
        PRESETS[model],
        personas=50,
        vectors_per_persona=2,
        layers_per_vector=2,
        max_seqs=max_seqs,
        max_batched_tokens=8192,
        limit_layers=limit_layers,
    )
    assert found.rows == PHASES * max_seqs
    assert found.allocated == made(model, found, 8192).bytes_allocated
    assert found.blend_layers == 4 if limit_layers else found.blend_layers > 4


def test_a_persona_uses_a_row_on_each_block_that_it_steers() -> None:
    shape = PRESETS["llama-3.1-8b"]

    def of(personas: int) -> SteeringBytes:
        return steering_bytes(
            shape,
            personas=personas,
            vectors_per_persona=2,
            layers_per_vector=3,
            max_seqs=256,
            max_batched_tokens=8192,
        )

    ten = of(10)
    assert ten.row == 6 * 8192
    assert ten.used_rows == 10 * ten.row
    assert ten.main_memory == 10 * 2 * 3 * 16384
    crowd = of(5000)
    assert crowd.allocated == ten.allocated
    assert crowd.used_rows == 512 * ten.row


def test_a_bank_that_is_too_small_names_what_to_change() -> None:
    shape = PRESETS["llama-3.3-70b"]
    with pytest.raises(PlanError, match=r"layers_per_vector: expected blends on up to 32 blocks .* found 80 blocks"):
        steering_bytes(
            shape, personas=1, vectors_per_persona=1, layers_per_vector=80, max_seqs=256, max_batched_tokens=8192
        )
    with pytest.raises(PlanError, match="max_seqs"):
        steering_bytes(
            shape, personas=1, vectors_per_persona=1, layers_per_vector=1, max_seqs=100_000, max_batched_tokens=8192
        )
