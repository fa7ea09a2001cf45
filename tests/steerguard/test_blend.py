"""Blends: parsing refuses by name of field, rows are sums, digests identify what is added."""

import json
import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerguard.blend import (
    UNSTEERED,
    BlendError,
    Component,
    UnknownVector,
    check_components,
    parse_blend,
    row_digest,
    sum_row,
)
from steerguard.vectors import SteeringVector

WIDTH = 8
RNG = np.random.default_rng(0)
A = SteeringVector({1: RNG.standard_normal(WIDTH).astype(np.float32)}, WIDTH)
B = SteeringVector({1: RNG.standard_normal(WIDTH).astype(np.float32), 3: np.ones(WIDTH, np.float32)}, WIDTH)
VECTORS = {v.digest: v for v in (A, B)}


def spec(*components: tuple[SteeringVector, float, str]) -> dict[str, object]:
    return {"blend": [{"vector": v.digest, "alpha": a, "positions": p} for v, a, p in components]}


def test_a_row_is_the_sum_of_alpha_v_per_block() -> None:
    row = sum_row(parse_blend(spec((A, 2.0, "all"), (B, -0.5, "all"))).components, VECTORS)
    np.testing.assert_allclose(row[1], 2.0 * A.layers[1] - 0.5 * B.layers[1], rtol=1e-6)
    np.testing.assert_allclose(row[3], -0.5 * B.layers[3], rtol=1e-6)
    assert all(values.dtype == np.float32 for values in row.values())


def test_a_component_can_take_some_blocks_of_its_vector() -> None:
    blend = parse_blend({"blend": [{"vector": B.digest, "alpha": 1, "layers": [3]}]})
    assert list(sum_row(blend.components, VECTORS)) == [3]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_order_of_components_changes_neither_digest_nor_sum(order: tuple[int, ...]) -> None:
    parts = [(A, 0.1, "all"), (B, 0.7, "all"), (A, 1e-3, "all")]
    one, other = parse_blend(spec(*parts)), parse_blend(spec(*(parts[i] for i in order)))
    assert one.digest == other.digest
    sums = sum_row(one.components, VECTORS), sum_row(other.components, VECTORS)
    assert all(np.array_equal(sums[0][b], sums[1][b]) for b in sums[0])


def test_both_phases_of_an_all_blend_are_one_row() -> None:
    blend = parse_blend(spec((A, 1.0, "all"), (B, 1.0, "all")))
    assert blend.prompt_row == blend.response_row != UNSTEERED


def test_a_phase_in_which_nothing_is_added_is_unsteered() -> None:
    assert parse_blend(spec((A, 1.0, "response"))).prompt_row == UNSTEERED
    assert parse_blend(spec((A, 1.0, "prompt"))).response_row == UNSTEERED
    zero = parse_blend(spec((A, 0.0, "all")))
    assert (zero.prompt_row, zero.response_row) == (UNSTEERED, UNSTEERED)


def test_what_is_added_decides_the_digest() -> None:
    blends = [
        spec((A, 1.0, "all")),
        spec((A, 1.5, "all")),
        spec((B, 1.0, "all")),
        spec((A, 1.0, "prompt")),
        spec((A, 1.0, "response")),
        {"blend": [{"vector": B.digest, "alpha": 1.0, "layers": [3]}]},
    ]
    assert len({parse_blend(b).digest for b in blends}) == len(blends)


def test_a_row_digest_does_not_depend_on_the_process() -> None:
    assert row_digest([Component("ab" * 32, 1.5)]) == (
        "78f3ca76ac38bfafff3c10aff282e4d12aca9c20e9f059d502682027948c7358"
    )


@pytest.mark.parametrize(
    "bad, field",
    [
        (None, "steerguard"),
        ([], "steerguard"),
        ("nonsense", "steerguard"),
        ('{"blend": [', "steerguard"),
        ("[" * 20_000, "steerguard"),
        ("x" * 40_000, "steerguard"),
        ('{"blend": [], "max_dose": 1, "max_dose": 9}', "steerguard"),
        ({"blend": None}, "steerguard.blend"),
        ({"blend": "x"}, "steerguard.blend"),
        ({"blend": [3]}, "steerguard.blend[0]"),
        ({"blend": [], "skill": 1}, "steerguard.skill"),
        ('{"\\ud800": 1}', r"steerguard.\ud800"),  # UTF-8, and so an answer, can't hold it as it is
        ({"blend": [], "max_dose": 0}, "steerguard.max_dose"),
        ({"blend": [], "max_dose": True}, "steerguard.max_dose"),
        ({"blend": [], "on_overdose": "ignore"}, "steerguard.on_overdose"),
        ({"blend": [{"alpha": 1}]}, "steerguard.blend[0].vector"),
        ({"blend": [{"vector": A.digest.upper(), "alpha": 1}]}, "steerguard.blend[0].vector"),
        ({"blend": [{"vector": A.digest}]}, "steerguard.blend[0].alpha"),
        ({"blend": [{"vector": A.digest, "alpha": math.inf}]}, "steerguard.blend[0].alpha"),
        ({"blend": [{"vector": A.digest, "alpha": 10**400}]}, "steerguard.blend[0].alpha"),
        ({"blend": [{"vector": A.digest, "alpha": "1"}]}, "steerguard.blend[0].alpha"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "positions": "answer"}]}, "steerguard.blend[0].positions"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "positions": ["all"]}]}, "steerguard.blend[0].positions"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "layers": []}]}, "steerguard.blend[0].layers"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "layers": [1, 1]}]}, "steerguard.blend[0].layers"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "layers": [-1]}]}, "steerguard.blend[0].layers[0]"),
        ({"blend": [{"vector": A.digest, "alpha": 1, "layers": [1.0]}]}, "steerguard.blend[0].layers[0]"),
        ({"blend": [{"vector": A.digest, "alpha": 1}] * 65}, "steerguard.blend"),
    ],
)
def test_a_malformed_spec_is_refused_by_field(bad: object, field: str) -> None:
    with pytest.raises(BlendError) as refused:
        parse_blend(bad)
    assert refused.value.field == field
    assert refused.value.expected in str(refused.value)


def test_an_unknown_vector_is_named() -> None:
    missing = "0" * 64
    with pytest.raises(UnknownVector, match=missing):
        check_components([Component(missing, 1.0)], VECTORS, 4)


@pytest.mark.parametrize("layer", [2, 4])
def test_blocks_that_model_or_vector_lack_are_refused(layer: int) -> None:
    with pytest.raises(BlendError, match=str(layer)):
        check_components([Component(B.digest, 1.0, layers=(layer,))], VECTORS, 4)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["blend", "vector", "alpha", "positions", "layers", "max_dose", "x"]), inner)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_json_gives_a_blend_or_a_named_refusal(value: object) -> None:
    for asked in (value, json.dumps(value)):
        try:
            blend = parse_blend(asked)
        except BlendError as error:
            assert error.field.startswith("steerguard")
        else:
            assert all(math.isfinite(c.alpha) for c in blend.components)


@given(
    st.lists(st.tuples(st.sampled_from([A, B]), st.floats(-1e3, 1e3), st.sampled_from(["all", "prompt", "response"])))
)
def test_scaling_by_one_changes_nothing(parts: list[tuple[SteeringVector, float, str]]) -> None:
    if len(parts) <= 64:
        blend = parse_blend(spec(*parts))
        assert blend.scaled(1.0).digest == blend.digest
