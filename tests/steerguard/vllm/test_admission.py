"""The front door: doses are computed and kept, what the dtype can't hold is refused, receipts say what was applied."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from steerguard.blend import BlendError, Overdose, UnknownVector
from steerguard.integrations.vllm.admission import Admission, collect_receipt
from steerguard.integrations.vllm.config import PluginConfig
from steerguard.integrations.vllm.wire import PLAN_KEY, SPEC_KEY, STEER_KEYS
from steerguard.vectors import SteeringVector

WIDTH = 4
NORM = 10.0
V = SteeringVector({1: np.array([3, 4, 0, 0], np.float32)}, WIDTH)  # ‖v‖ = 5: dose 0.5 at α = 1
W = SteeringVector({1: np.array([-3, -4, 0, 0], np.float32), 2: np.array([0, 0, 6, 8], np.float32)}, WIDTH)


@pytest.fixture
def admission() -> Admission:
    made = Admission(
        num_layers=4,
        hidden_size=WIDTH,
        dtype_max=torch.finfo(torch.float16).max,
        blend_layers=2,
        config=PluginConfig(max_dose=2.0, dose_ceiling=8.0),
    )
    made.set_norms(dict.fromkeys(range(4), NORM))
    for vector in (V, W):
        made.add(vector)
    return made


def spec(*parts: tuple[SteeringVector, float], **more: Any) -> str:
    return json.dumps({"blend": [{"vector": v.digest, "alpha": a} for v, a in parts], **more})


def test_the_dose_is_that_of_the_sum_at_the_block_where_it_is_highest(admission: Admission) -> None:
    assert admission.admit(spec((V, 1.0))).dose == pytest.approx(0.5)
    assert admission.admit(spec((V, 1.0), (W, 1.0))).dose == pytest.approx(1.0)  # block 1 cancels, block 2 doesn't


def test_each_phase_has_a_dose_of_its_own(admission: Admission) -> None:
    blend = [
        {"vector": V.digest, "alpha": 1.0, "positions": "prompt"},
        {"vector": V.digest, "alpha": 3.0, "positions": "response"},
    ]
    assert admission.admit(json.dumps({"blend": blend})).dose == pytest.approx(1.5)


def test_an_overdose_is_refused_with_limit_dose_and_block(admission: Admission) -> None:
    with pytest.raises(Overdose, match=r"at most 2, found 2\.5 at block 1"):
        admission.admit(spec((V, 5.0)))


def test_an_overdose_is_scaled_to_the_limit_where_that_was_asked(admission: Admission) -> None:
    admitted = admission.admit(spec((V, 5.0), on_overdose="clamp"))
    assert (admitted.dose, admitted.clamped_from) == (pytest.approx(2.0), pytest.approx(2.5))
    assert [c.alpha for c in admitted.blend.components] == [pytest.approx(4.0)]
    # What clamping made is itself within the limit.
    assert admission.admit(spec((V, admitted.blend.components[0].alpha))).dose == pytest.approx(2.0)


def test_a_blend_sets_its_own_limit_in_both_directions_up_to_the_ceiling(admission: Admission) -> None:
    with pytest.raises(Overdose, match=r"at most 0\.4"):
        admission.admit(spec((V, 1.0), max_dose=0.4))
    assert admission.admit(spec((V, 10.0), max_dose=8)).dose == pytest.approx(5.0)
    with pytest.raises(BlendError, match="ceiling"):
        admission.admit(spec((V, 1.0), max_dose=8.1))


def test_what_the_dtype_cannot_hold_is_refused_even_if_clamping_was_asked(admission: Admission) -> None:
    admission.set_norms(dict.fromkeys(range(4), 1e9))
    with pytest.raises(BlendError, match="dtype can hold"):
        admission.admit(spec((V, 1e6), on_overdose="clamp"))
    admission.set_norms(dict.fromkeys(range(4), NORM))
    with pytest.raises(Overdose, match="inf"):
        admission.admit(spec((V, 1e300), on_overdose="clamp"))


def test_what_the_dtype_cannot_hold_once_every_block_has_added_to_it_is_refused(admission: Admission) -> None:
    admission.set_norms(dict.fromkeys(range(4), 1e9))
    step = np.array([20_000, 0, 0, 0], np.float32)
    one, two = SteeringVector({1: step}, WIDTH), SteeringVector({1: step, 2: -step}, WIDTH)
    for vector in (one, two):
        admission.add(vector)
    assert admission.admit(spec((one, 1.0))).plan is not None
    with pytest.raises(BlendError, match=r"dtype can hold.* found 4e\+04"):
        admission.admit(spec((two, 1.0)))


def test_more_blocks_than_the_bank_has_room_for_are_refused(admission: Admission) -> None:
    wide = SteeringVector({b: np.ones(WIDTH, np.float32) for b in range(3)}, WIDTH)
    admission.add(wide)
    with pytest.raises(BlendError, match="at most 2 blocks"):
        admission.admit(spec((wide, 1.0)))


def test_a_removed_vector_is_unknown_at_once_though_its_blend_was_admitted_before(admission: Admission) -> None:
    asked = spec((V, 1.0))
    admission.admit(asked)
    admission.discard(V.digest)
    with pytest.raises(UnknownVector):
        admission.admit(asked)


def test_the_plan_is_admissions_alone(admission: Admission) -> None:
    extra = {SPEC_KEY: spec((V, 1.0)), PLAN_KEY: "forged", "other": 1}
    admitted = admission.admit_into(extra)
    assert admitted is not None
    assert admitted[PLAN_KEY] == admission.admit(spec((V, 1.0))).plan
    assert admission.admit_into({PLAN_KEY: "forged"}) == {}
    assert admission.admit_into({"other": 1}) == {"other": 1}
    assert admission.admit_into(None) is None


@pytest.mark.parametrize("key", STEER_KEYS)
def test_a_skill_that_nobody_has_looked_up_is_refused_rather_than_left_out(admission: Admission, key: str) -> None:
    for check in (admission.note, admission.admit_into):
        with pytest.raises(BlendError, match=f"{key}: expected digests of vectors"):
            check({key: None, "other": 1})
    assert admission.refused == {"BlendError": 2}


def test_receipts_collect_what_was_admitted_and_only_inside(admission: Admission) -> None:
    admission.note({SPEC_KEY: spec((V, 1.0))})
    with collect_receipt() as receipt:
        admission.note({SPEC_KEY: spec((V, 1.5))})
        admission.note({"other": 1})
        admission.note(None)
    assert [a.dose for a in receipt.admitted] == [pytest.approx(0.75)]


def test_refusals_are_counted_by_reason(admission: Admission) -> None:
    for bad in ("{", spec((V, 100.0)), json.dumps({"blend": [{"vector": "0" * 64, "alpha": 1}]})):
        with pytest.raises(BlendError):
            admission.admit(bad)
    assert admission.refused == {"BlendError": 1, "Overdose": 1, "UnknownVector": 1}


def test_many_alphas_leave_no_more_than_the_cache_behind(admission: Admission, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerguard.integrations.vllm.admission.MAX_CACHED_BLENDS", 10)
    for i in range(50):
        admission.admit(spec((V, i / 100)))
    assert len(admission._cache) == 10


@pytest.mark.parametrize("name", ["STEERGUARD_MAX_DOSE", "STEERGUARD_BANK_MIB", "STEERGUARD_MAX_BLEND_LAYERS"])
@pytest.mark.parametrize("value", ["", "many", "-1", "0", "nan"])
def test_a_setting_that_makes_no_sense_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name):
        PluginConfig.from_environment()


def test_the_bank_has_room_for_every_requests_own_blend() -> None:
    config = PluginConfig(bank_mib=256)
    assert config.blend_layers(num_layers=32, hidden_size=4096, itemsize=2, max_num_seqs=256) == 32
    assert config.blend_layers(num_layers=80, hidden_size=8192, itemsize=2, max_num_seqs=256) == 32
    with pytest.raises(ValueError, match="STEERGUARD_BANK_MIB"):
        PluginConfig(bank_mib=1).blend_layers(num_layers=32, hidden_size=4096, itemsize=2, max_num_seqs=256)
