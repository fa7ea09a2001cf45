"""What steering takes: the buffers of steerguard/bank.py, of which each GPU has its own, and vectors in main memory.

The sizes are those that the plugin allocates; tests/jobs/planner/test_vectors.py makes the buffers and compares.
"""

from dataclasses import dataclass

from jobs.planner.errors import PlanError
from jobs.planner.shape import ModelShape
from steerguard.integrations.vllm.config import DEFAULT_BANK_MIB, PluginConfig

INDEX_BYTES = 4  # slots and rows are int32
VECTOR_ITEMSIZE = 4  # the vector itself is float32, in the worker's main memory
PHASES = 2


@dataclass(frozen=True)
class SteeringBytes:
    """Bytes on one GPU unless said otherwise."""

    vector: int
    """One vector in the model's dtype, on all of its blocks."""
    row: int
    """One persona's blend as the engine adds it: a sum per block, in the model's dtype."""
    vector_file: int
    """The same in float32, as it is stored, and held in main memory."""
    used_rows: int
    """Rows that hold something while every persona is in use."""
    bank: int
    """Summed rows, allocated at start."""
    indices: int
    """Index buffers, allocated at start."""
    main_memory: int
    """All personas' vectors in float32, per worker."""
    rows: int
    blend_layers: int
    """Blocks that one phase of a blend may steer on this engine."""

    @property
    def allocated(self) -> int:
        return self.bank + self.indices

    @property
    def unused(self) -> int:
        return max(0, self.allocated - self.used_rows)


def steering_bytes(
    shape: ModelShape,
    *,
    personas: int,
    vectors_per_persona: int,
    layers_per_vector: int,
    max_seqs: int,
    max_batched_tokens: int,
    limit_layers: bool = True,
    bank_mib: int = DEFAULT_BANK_MIB,
) -> SteeringBytes:
    """What an engine with `max_seqs` requests at once allocates, and how much of it these personas use.

    `limit_layers`: STEERGUARD_MAX_BLEND_LAYERS is set to what the personas need; otherwise the bank has room for all
    blocks, or as many as STEERGUARD_BANK_MIB holds. Vectors of a blend may meet on a block, where they are one row; the
    worst case is taken, that none do. A blend has the same row in both phases unless its positions differ, so a persona
    uses one row. Raises PlanError naming `layers_per_vector` if the bank is too small for such blends.
    """
    needed = min(shape.layers, vectors_per_persona * layers_per_vector)
    config = PluginConfig(bank_mib=bank_mib, max_blend_layers=needed if limit_layers else None)
    try:
        blend_layers = config.blend_layers(
            num_layers=shape.layers, hidden_size=shape.hidden, itemsize=shape.itemsize, max_num_seqs=max_seqs
        )
    except ValueError as error:
        raise PlanError("max_seqs", "so few that the bank has room for a row of each", error) from None
    if blend_layers < needed:
        expected = (
            f"blends on up to {blend_layers} blocks with a bank of {bank_mib} MiB and {max_seqs} requests at once"
        )
        raise PlanError("layers_per_vector", expected, f"{needed} blocks")
    rows = PHASES * max_seqs
    row_bytes = shape.hidden * shape.itemsize
    indices = (shape.layers * (rows + 1) + max_batched_tokens) * INDEX_BYTES
    file_bytes = layers_per_vector * shape.hidden * VECTOR_ITEMSIZE
    return SteeringBytes(
        vector=layers_per_vector * row_bytes,
        row=needed * row_bytes,
        vector_file=file_bytes,
        used_rows=min(personas, rows) * needed * row_bytes,
        bank=(rows * blend_layers + 1) * row_bytes,
        indices=indices,
        main_memory=personas * vectors_per_persona * file_bytes,
        rows=rows,
        blend_layers=blend_layers,
    )
