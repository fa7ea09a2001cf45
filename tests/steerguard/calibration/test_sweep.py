import numpy as np
import pytest

from steerguard.calibration.sweep import alpha_for_dose, choose_layer_sets, plan_points, random_directions
from steerguard.vectors import SteeringVector

NORMS = {block: 50.0 + block for block in range(30)}


def vector(*blocks: int) -> SteeringVector:
    rng = np.random.default_rng(0)
    return SteeringVector({block: rng.standard_normal(16).astype(np.float32) for block in blocks}, 16)


def test_a_dose_is_that_of_the_strongest_block():
    v = vector(4, 9)
    alpha = alpha_for_dose(v, (4, 9), NORMS, 0.5)
    assert max(alpha * v.norms[block] / NORMS[block] for block in (4, 9)) == pytest.approx(0.5)
    assert alpha_for_dose(v, (4,), NORMS, 0.5) * v.norms[4] / NORMS[4] == pytest.approx(0.5)


def test_a_few_blocks_are_tried_one_by_one_and_together():
    assert choose_layer_sets(vector(10), 30) == [(10,)]
    assert choose_layer_sets(vector(10, 14), 30) == [(10,), (14,), (10, 14)]


def test_of_many_blocks_some_in_the_middle_are_tried():
    sets = choose_layer_sets(vector(*range(30)), 30)
    assert sets == [(8,), (11,), (14,), (18,), (21,)]
    assert choose_layer_sets(vector(*range(24, 30)), 30)[0] == (24,)


def test_points_are_ordered_and_each_there_once():
    points = plan_points(vector(4, 9), layer_sets=[(9,), (9, 4), (4, 9)], doses=[0.4, 0.1], norms=NORMS)
    assert [(point.layers, point.dose) for point in points] == [
        ((9,), 0.1),
        ((9,), 0.4),
        ((4, 9), 0.1),
        ((4, 9), 0.4),
    ]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"layer_sets": []}, "layers: expected at least one set"),
        ({"layer_sets": [(4, 5)]}, r"layers: expected blocks that the vector has \(4, 9\), found \[5\]"),
        ({"layer_sets": [()]}, "layers: expected blocks that the vector has"),
        ({"doses": []}, "doses: expected different numbers above 0"),
        ({"doses": [0.0]}, "doses: expected different numbers above 0"),
        ({"doses": [0.1, 0.1]}, "doses: expected different numbers above 0"),
        ({"doses": [float("nan")]}, "doses: expected different numbers above 0"),
    ],
)
def test_what_can_not_be_swept_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        plan_points(vector(4, 9), **{"layer_sets": [(4,)], "doses": [0.1], "norms": NORMS, **wrong})


def test_random_directions_have_the_vectors_norms_and_nothing_else_of_it():
    v = vector(4, 9)
    randoms = random_directions(v, seed=3, count=20)
    for random in randoms:
        assert random.norms == pytest.approx(v.norms, rel=1e-5)
    cosines = [float(random.layers[4] @ v.layers[4]) / v.norms[4] ** 2 for random in randoms]
    assert abs(np.mean(cosines)) < 0.3
    assert len({random.digest for random in randoms}) == 20
    assert [one.digest for one in random_directions(v, seed=3, count=20)] == [one.digest for one in randoms]
