"""Steering in a worker process: the vectors, the buffers, and each step's row of every token.

One `WorkerSteering` per model runner. It never looks at HTTP or JSON: requests arrive checked and in the compact
form that `admission.py` put into their sampling parameters.
"""

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from steerguard.bank import SteeringBank
from steerguard.blend import PHASES, UNSTEERED, FloatArray, sum_row
from steerguard.integrations.vllm.architectures import find_blocks, stream_of
from steerguard.integrations.vllm.config import PluginConfig
from steerguard.integrations.vllm.norms import NormProbe
from steerguard.integrations.vllm.wire import RequestPlan
from steerguard.vectors import SteeringVector, read_vector

logger = logging.getLogger("vllm.steerguard")

Member = TypeVar("Member")
IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True)
class EngineShape:
    """What of the engine's configuration the buffers depend on."""

    num_layers: int
    hidden_size: int
    dtype: torch.dtype
    max_num_seqs: int
    max_num_tokens: int


class WorkerSteering:
    """Owns the bank of one worker and makes its decoder blocks read from it."""

    def __init__(self, model: nn.Module, shape: EngineShape, device: torch.device, config: PluginConfig) -> None:
        self.shape = shape
        self.vectors: dict[str, SteeringVector] = {}
        self._model = model
        self._probe: NormProbe | None = None
        self._members: list[Any] = []
        self._any_steered = False
        self._steered = {"prompt": 0, "response": 0}
        self._prompt_rows = self._response_rows = np.zeros(0, np.int32)
        self._boundaries = np.zeros(0, np.int64)
        self._blocks = blocks = find_blocks(model, shape.num_layers)
        self.blend_layers = config.blend_layers(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            itemsize=shape.dtype.itemsize,
            max_num_seqs=shape.max_num_seqs,
        )
        max_rows = 2 * shape.max_num_seqs
        self.bank = SteeringBank(
            blocks=sorted(blocks),
            hidden_size=shape.hidden_size,
            max_rows=max_rows,
            max_slots=max_rows * min(self.blend_layers, len(blocks)),
            max_tokens=shape.max_num_tokens,
            dtype=shape.dtype,
            device=device,
        )
        for position, index in enumerate(sorted(blocks)):
            _steer_block(blocks[index], self.bank, position)
        logger.info(
            "SteerGuard steers %d blocks of %s: %d rows, %.1f MiB",
            len(blocks),
            type(model).__name__,
            max_rows,
            self.bank.bytes_allocated / 2**20,
        )

    def register(self, payload: bytes) -> None:
        """Holds the vector of a canonical file. Raises VectorError."""
        vector = read_vector(payload)
        self.vectors[vector.digest] = vector

    def remove(self, digest: str) -> None:
        """Lets go of a vector; its rows stay until their space is needed."""
        self.vectors.pop(digest, None)

    def start_probe(self) -> None:
        """From here on, note the norms of what the blocks put out."""
        self.finish_probe()
        self._probe = NormProbe(self._model, self._blocks)

    def finish_probe(self) -> dict[int, float]:
        """Mean norms of this worker's blocks since `start_probe`."""
        probe, self._probe = self._probe, None
        return probe.finish() if probe is not None else {}

    def state(self) -> dict[str, Any]:
        return {
            "rows_in_use": self.bank.rows_in_use,
            "rows_total": self.bank.max_rows,
            "row_evictions": self.bank.evictions,
            "bytes_allocated": self.bank.bytes_allocated,
            "max_blend_layers": self.blend_layers,
            "steered_prompt_tokens": self._steered["prompt"],
            "steered_response_tokens": self._steered["response"],
        }

    def prepare_step(
        self,
        members: Sequence[Member],
        describe: Callable[[Member], tuple[RequestPlan | None, int]],
        num_computed_tokens: IntArray,
        num_scheduled_tokens: IntArray,
    ) -> None:
        """Writes the row of each of this step's tokens, making rows that aren't in the bank yet.

        `members` are the batch's requests in order, as objects that stay the same from step to step; `describe`
        gives one's plan (None: unsteered) and prompt length. The arrays have an entry per member: tokens computed
        before this step, and tokens scheduled in it. Positions are absolute, so chunks, preemption, resumption and
        draft tokens don't matter.
        """
        if len(members) != len(self._members) or not all(map(operator.is_, members, self._members)):
            self._set_members(members, describe)
        if not self._any_steered:
            self.bank.clear_rows()
            return
        if num_scheduled_tokens.max() == 1:  # decoding only: a token a request
            in_response = num_computed_tokens >= self._boundaries
            row_of_token = np.where(in_response, self._response_rows, self._prompt_rows)
        else:
            member = np.repeat(np.arange(len(members)), num_scheduled_tokens)
            starts = np.cumsum(num_scheduled_tokens) - num_scheduled_tokens
            position = np.arange(len(member)) + (num_computed_tokens - starts)[member]
            in_response = position >= self._boundaries[member]
            row_of_token = np.where(in_response, self._response_rows[member], self._prompt_rows[member])
        self.bank.write_rows(row_of_token)
        added = row_of_token != 0
        response_tokens = int(np.count_nonzero(added & in_response))
        self._steered["response"] += response_tokens
        self._steered["prompt"] += int(np.count_nonzero(added)) - response_tokens

    def _set_members(
        self, members: Sequence[Member], describe: Callable[[Member], tuple[RequestPlan | None, int]]
    ) -> None:
        """Takes note of a batch whose requests differ from the step's before."""
        described = [describe(member) for member in members]
        plans = [plan for plan, _ in described if plan is not None]
        self._place(plans)
        row = self.bank.row
        self._prompt_rows = np.array([0 if p is None else row(p.prompt_row) for p, _ in described], np.int32)
        self._response_rows = np.array([0 if p is None else row(p.response_row) for p, _ in described], np.int32)
        # The last prompt token already belongs to the response: it predicts the first answered one.
        self._boundaries = np.array([length - 1 for _, length in described], np.int64)
        self._any_steered = bool(plans)
        # Last, so that a batch that failed here is looked at again.
        self._members = list(members)

    def _place(self, plans: Sequence[RequestPlan]) -> None:
        missing: dict[str, dict[int, FloatArray]] = {}
        for plan in plans:
            for phase in PHASES:
                digest = plan.row(phase)
                if digest != UNSTEERED and digest not in missing and not self.bank.has(digest):
                    missing[digest] = sum_row(plan.components(phase), self.vectors)
        if missing:
            keep = {row for plan in plans for row in (plan.prompt_row, plan.response_row)}
            self.bank.place(missing, keep)


def _steer_block(block: nn.Module, bank: SteeringBank, position: int) -> None:
    """Gives one decoder block its buffers and makes its class use them.

    Buffers, so that torch.compile and CUDA graphs take their addresses as fixed; not persistent, so that they
    are no part of the checkpoint. The class is patched rather than the object, because that is what dynamo
    traces; objects without buffers (a draft model's blocks) go the original way.
    """
    block.register_buffer("steerguard_bank", bank.bank, persistent=False)
    block.register_buffer("steerguard_slots", bank.slots[position], persistent=False)
    block.register_buffer("steerguard_rows", bank.row_of_token, persistent=False)
    cls: Any = type(block)
    if "steerguard_forward" not in cls.__dict__:
        cls.steerguard_forward = cls.forward
        cls.forward = _steered_forward(cls.forward, split=stream_of(block) == "split")


def _steered_forward(original: Any, *, split: bool) -> Any:
    if split:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            if not hasattr(self, "steerguard_bank"):
                return output
            hidden_states, residual = output
            rows = self.steerguard_rows[: residual.shape[0]]
            return hidden_states, residual + self.steerguard_bank[self.steerguard_slots[rows]]

    else:

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            hidden_states = original(self, *args, **kwargs)
            if not hasattr(self, "steerguard_bank"):
                return hidden_states
            rows = self.steerguard_rows[: hidden_states.shape[-2]]
            return hidden_states + self.steerguard_bank[self.steerguard_slots[rows]]

    return forward
