"""The wait for a slot, against a simulation of an engine with slots."""

import math

import numpy as np
import pytest

from jobs.planner.popularity import distinct_in_batch, lru_hit_rate, popularity
from jobs.planner.waiting import expected_wait, machine_repair
from tests.jobs.planner.simulation import simulate_lru, simulate_slots


def test_popularity_is_a_distribution_in_which_zipf_has_favorites() -> None:
    assert np.allclose(popularity(50), 1 / 50)
    zipf = popularity(50, 1.0)
    assert zipf.sum() == pytest.approx(1)
    assert zipf[0] / zipf[9] == pytest.approx(10)


def test_a_batch_of_one_has_one_persona_and_a_large_one_all() -> None:
    shares = popularity(50, 0.8)
    assert distinct_in_batch(shares, 1) == pytest.approx(1)
    assert distinct_in_batch(shares, 100_000) == pytest.approx(50)


@pytest.mark.parametrize(("personas", "zipf_s", "slots"), [(50, 0.0, 4), (50, 1.0, 4), (50, 1.0, 16), (200, 0.8, 32)])
def test_the_hit_rate_is_that_of_a_simulated_lru(personas: int, zipf_s: float, slots: int) -> None:
    shares = popularity(personas, zipf_s)
    simulated = simulate_lru(shares, slots=slots, requests=40_000, seed=1)
    assert lru_hit_rate(shares, slots) == pytest.approx(simulated, abs=0.02)


def test_all_adapters_in_slots_means_no_miss_and_no_wait() -> None:
    shares = popularity(8, 1.0)
    assert lru_hit_rate(shares, 8) == 1
    found = expected_wait(requests_per_s=100, shares=shares, service_s=10, slots=8, copy_s=1)
    assert found.wait_s == 0


@pytest.mark.parametrize(
    ("personas", "slots", "requests_per_s", "service_s"),
    [(50, 8, 3, 2), (50, 8, 5, 2), (100, 16, 20, 1), (8, 4, 4, 2)],
)
def test_the_wait_of_equal_personas_is_that_of_a_simulation(
    personas: int, slots: int, requests_per_s: float, service_s: float
) -> None:
    shares = popularity(personas)
    found = expected_wait(requests_per_s=requests_per_s, shares=shares, service_s=service_s, slots=slots, copy_s=0)
    simulated = simulate_slots(
        requests_per_s=requests_per_s, shares=shares, service_s=service_s, slots=slots, requests=20_000, seed=1
    )
    assert found.slot_wait_s == pytest.approx(simulated.slot_wait_s, rel=0.15)
    assert found.queued == pytest.approx(simulated.queued, abs=0.03)


@pytest.mark.parametrize(
    ("personas", "zipf_s", "slots", "requests_per_s", "service_s"), [(50, 1.0, 8, 5, 2), (20, 0.8, 8, 10, 2)]
)
def test_the_wait_of_unequal_personas_is_of_the_order_of_a_simulation(
    personas: int, zipf_s: float, slots: int, requests_per_s: float, service_s: float
) -> None:
    shares = popularity(personas, zipf_s)
    found = expected_wait(requests_per_s=requests_per_s, shares=shares, service_s=service_s, slots=slots, copy_s=0)
    simulated = simulate_slots(
        requests_per_s=requests_per_s, shares=shares, service_s=service_s, slots=slots, requests=20_000, seed=1
    )
    assert found.slot_wait_s == pytest.approx(simulated.slot_wait_s, rel=0.4)
    assert found.queued == pytest.approx(simulated.queued, abs=0.05)


def test_adapters_that_are_always_asked_for_leave_no_slot_to_the_others() -> None:
    # As measured with vLLM 0.32: eight clients kept four adapters busy, and the fifth waited all the while.
    shares = np.array([0.24, 0.24, 0.24, 0.24, 0.04])
    found = expected_wait(requests_per_s=10, shares=shares, service_s=5, slots=4, copy_s=0)
    assert found.holding == 4
    assert math.isinf(found.slot_wait_s)
    assert found.queued == pytest.approx(0.04)
    simulated = simulate_slots(requests_per_s=10, shares=shares, service_s=5, slots=4, requests=5000, seed=1)
    assert simulated.slot_wait_s > 1


def test_more_slots_never_make_anybody_wait_longer() -> None:
    shares = popularity(50, 0.9)
    waits = [
        expected_wait(requests_per_s=4, shares=shares, service_s=2, slots=slots, copy_s=0.01).wait_s
        for slots in range(4, 51)
    ]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] == 0


def test_the_finite_source_queue_agrees_with_one_that_is_solved_by_hand() -> None:
    # Two sources, one server, idle and served for 1 s on average each: states 1 : 2 : 2 of 5.
    wait_s, waits = machine_repair(2.0, 1.0, 1, 1.0)
    # Waiting 2/5 on average, served 4/5 a second; arrivals 2·1 and 1·2, of which the latter wait.
    assert wait_s == pytest.approx((2 / 5) / (4 / 5))
    assert waits == pytest.approx(2 / 4)
