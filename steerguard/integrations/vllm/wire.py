"""How a checked blend travels inside vLLM, from where the request enters to the scheduler and the workers.

vLLM carries `SamplingParams.extra_args` through msgpack to every process, so a plan is plain lists and strings
under a key of its own. Only admission writes that key; one that a client sends is overwritten or dropped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from steerguard.blend import Blend, Component, Phase

SPEC_KEY = "steerguard"  # what clients send
PLAN_KEY = "steerguard.plan"  # what admission made of it
SKILL_KEY = "steer_skill"  # what offline callers may write instead of SPEC_KEY; never travels
ALPHA_KEY = "steer_alpha"
POSITIONS_KEY = "steer_positions"
STEER_KEYS = (SKILL_KEY, ALPHA_KEY, POSITIONS_KEY)


@dataclass(frozen=True)
class RequestPlan:
    """What to add for one request: the digest of each phase's row, and what the rows are made of."""

    prompt_row: str
    response_row: str
    all_components: tuple[Component, ...]

    def row(self, phase: Phase) -> str:
        return self.prompt_row if phase == "prompt" else self.response_row

    def components(self, phase: Phase) -> Iterable[Component]:
        return (c for c in self.all_components if c.adds_in(phase))


def encode_plan(blend: Blend) -> list[Any] | None:
    """The msgpack-able form of a blend's plan; None where it adds nothing."""
    components = [c for c in blend.components if c.alpha != 0.0]
    if not components:
        return None
    return [
        blend.prompt_row,
        blend.response_row,
        [[c.vector, c.alpha, c.positions, None if c.layers is None else list(c.layers)] for c in components],
    ]


def plan_of(sampling_params: Any) -> RequestPlan | None:
    """The plan in a request's sampling parameters (None for pooling requests and unsteered ones)."""
    extra = getattr(sampling_params, "extra_args", None)
    encoded = extra.get(PLAN_KEY) if extra else None
    if encoded is None:
        return None
    prompt_row, response_row, components = encoded
    return RequestPlan(
        prompt_row,
        response_row,
        tuple(
            Component(vector, float(alpha), positions, None if layers is None else tuple(layers))
            for vector, alpha, positions, layers in components
        ),
    )


def vectors_of(plan: RequestPlan) -> set[str]:
    """Digests of the vectors that a plan needs."""
    return {c.vector for c in plan.all_components}


def block_extra_key(plan: RequestPlan, start: int, end: int, num_prompt_tokens: int) -> str | None:
    """What makes a KV block of positions [start, end) differ from the unsteered block of the same tokens.

    None where nothing in it is steered, so that unsteered blocks keep stock vLLM's key. A block across the
    phase boundary names both rows and where they meet; elsewhere the row alone, so a conversation whose earlier
    turn was answered under an `all` blend finds its blocks again, though its prompt has grown.
    """
    boundary = num_prompt_tokens - 1
    if plan.prompt_row == plan.response_row or end <= boundary:
        return plan.prompt_row or None
    if start >= boundary:
        return plan.response_row or None
    return f"{plan.prompt_row}|{boundary - start}|{plan.response_row}"
