"""KV block keys: steered blocks differ from unsteered ones exactly where something is added."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steerguard.blend import parse_blend
from steerguard.integrations.vllm.wire import RequestPlan, block_extra_key, encode_plan, plan_of

PROMPT_TOKENS = 100
rows = st.sampled_from(["", "a", "b"])


def rows_by_position(plan: RequestPlan, start: int, end: int, prompt_tokens: int) -> list[str]:
    return [plan.prompt_row if p < prompt_tokens - 1 else plan.response_row for p in range(start, end)]


@given(rows, rows, rows, rows, st.integers(0, 140), st.integers(1, 32), st.integers(1, 160), st.integers(1, 160))
def test_blocks_share_a_key_only_if_every_position_is_steered_alike(
    prompt_1: str, response_1: str, prompt_2: str, response_2: str, start: int, size: int, length_1: int, length_2: int
) -> None:
    one, other = RequestPlan(prompt_1, response_1, ()), RequestPlan(prompt_2, response_2, ())
    keys = [block_extra_key(p, start, start + size, n) for p, n in ((one, length_1), (other, length_2))]
    steered = [rows_by_position(p, start, start + size, n) for p, n in ((one, length_1), (other, length_2))]
    assert (keys[0] == keys[1]) == (steered[0] == steered[1])
    for key, by_position in zip(keys, steered, strict=True):
        assert (key is None) == (not any(by_position))


def test_a_plan_survives_the_wire() -> None:
    digest = "ab" * 32
    blend = parse_blend(
        {
            "blend": [
                {"vector": digest, "alpha": 1.5, "positions": "prompt", "layers": [2, 1]},
                {"vector": digest, "alpha": 0},
            ]
        }
    )

    class Params:
        extra_args = {"steerguard.plan": encode_plan(blend)}

    plan = plan_of(Params)
    assert plan is not None
    assert (plan.prompt_row, plan.response_row) == (blend.prompt_row, blend.response_row)
    assert [(c.vector, c.alpha, c.positions, c.layers) for c in plan.all_components] == [
        (digest, 1.5, "prompt", (1, 2))
    ]
    assert list(plan.components("response")) == []
    assert np.isclose(plan.all_components[0].alpha, 1.5)


def test_a_blend_that_adds_nothing_travels_as_nothing() -> None:
    assert encode_plan(parse_blend({"blend": [{"vector": "ab" * 32, "alpha": 0}]})) is None
    assert encode_plan(parse_blend({"blend": []})) is None
