"""Plans: that the answers hang together, whatever is asked."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.planner.calibration import read_calibration
from jobs.planner.errors import PlanError
from jobs.planner.hardware import Hardware
from jobs.planner.inputs import INPUTS, find_errors, read_question
from jobs.planner.plan import Plan, Question, Way, make_plan
from jobs.planner.report import as_json, sections, show_bytes, show_s, summarize
from jobs.planner.shape import PRESETS
from jobs.planner.speed import Traffic, batch_s

MEASURED = Path(__file__).parent / "measured-2026-12-01.json"

questions = st.builds(
    Question,
    shape=st.sampled_from(list(PRESETS.values())),
    hardware=st.builds(
        Hardware, gpu_gib=st.sampled_from([24.0, 48.0, 80.0, 141.0]), gpus=st.sampled_from([1, 2, 4, 8])
    ),
    personas=st.integers(1, 2000),
    slots=st.integers(1, 64),
    restricted_slots=st.booleans(),
    layers_per_vector=st.integers(1, 8),
    traffic=st.builds(
        Traffic, st.floats(0.01, 200), st.integers(1, 2000), st.integers(1, 1000), st.sampled_from([0.0, 0.7, 1.2])
    ),
    max_seqs=st.integers(1, 512),
)


def way(plan: Plan, key: str) -> Way:
    return next(one for one in plan.ways if one.key == key)


@given(questions)
def test_answers_hang_together(question: Question) -> None:
    plan = make_plan(question)
    for one in plan.ways:
        memory = one.memory
        assert memory.weights + memory.extras + memory.left == pytest.approx(memory.usable, abs=2)
        assert 0 <= one.used_bytes <= one.held_bytes
        assert one.wasted_bytes >= 0
        assert (one.operation is None) == (not memory.fits)
        if one.operation is None or one.cost is None:
            continue
        run = one.operation
        assert one.max_batch <= question.max_seqs
        assert run.engines * run.most_requests_per_s >= question.traffic.requests_per_s * (1 - 1e-6)
        assert run.batch <= one.max_batch * (1 + 1e-6)
        assert one.cost.per_million_tokens >= one.cost.per_million_tokens_full * (1 - 1e-6)
        assert one.cost.per_persona_month * question.personas == pytest.approx(one.cost.per_month)
    assert summarize(plan) and all(len(row.cells) == 3 for section in sections(plan) for row in section.rows)
    assert as_json(plan)["ways"].keys() == {"lora", "slora", "steering"}


def test_5000_personas_cost_the_same_gpu_memory_as_one_by_steering() -> None:
    few, many = (make_plan(read_question({"personas": count})) for count in ("1", "5000"))
    assert way(few, "steering").held_bytes == way(many, "steering").held_bytes
    assert way(few, "steering").max_batch == way(many, "steering").max_batch
    assert many.adapters_bytes == 5000 * few.adapters_bytes


def test_slots_take_from_the_kv_cache_what_they_hold() -> None:
    none, more = (way(make_plan(read_question({"slots": slots})), "lora") for slots in ("1", "50"))
    slot = none.held_bytes
    assert more.held_bytes == 50 * slot
    assert none.memory.left - more.memory.left == 49 * slot
    assert more.max_batch < none.max_batch


def test_the_personas_that_fit_do_and_one_more_does_not() -> None:
    question = read_question({"gpu_gib": "24"})
    fit = way(make_plan(question), "lora").personas_that_fit
    assert fit is not None and fit > 0
    at_once = math.ceil(way(make_plan(question), "lora").operation.batch)  # type: ignore[union-attr]
    assert way(make_plan(replace(question, slots=fit)), "lora").memory.batch >= at_once
    assert way(make_plan(replace(question, slots=fit + 1)), "lora").memory.batch < at_once


def test_a_model_that_does_not_fit_has_no_speed_and_no_cost() -> None:
    plan = make_plan(read_question({"model": "llama-3.3-70b", "gpu_gib": "80"}))
    steered = way(plan, "steering")
    assert (steered.operation, steered.cost, steered.max_batch) == (None, None, 0)
    assert any("not one request" in note for note in plan.notes)
    two = make_plan(read_question({"model": "llama-3.3-70b", "gpu_gib": "80", "gpus": "4"}))
    assert way(two, "steering").memory.fits


def test_traffic_that_one_engine_cannot_answer_takes_more() -> None:
    calm, busy = (way(make_plan(read_question({"requests_per_s": rate})), "steering") for rate in ("2", "500"))
    assert calm.operation is not None and busy.operation is not None and busy.cost is not None
    assert calm.operation.engines == 1
    assert busy.operation.engines == math.ceil(500 / busy.operation.most_requests_per_s)
    assert busy.cost.per_month == pytest.approx(busy.operation.engines * 2.5 * 730)


def test_a_calibrated_plan_has_the_speed_that_was_measured() -> None:
    calibration = read_calibration(MEASURED)
    asked = {"model": "smollm2-135m", "gpu_gib": "24", "prompt_tokens": "32", "output_tokens": "64", "max_seqs": "64"}
    plan = make_plan(read_question(asked), calibration)
    for key, row in (("steering", "steered 50"), ("lora", "lora-50")):
        run = way(plan, key).operation
        assert run is not None
        measured = calibration.medians[row][64]["tokens_per_s"]
        assert run.most_tokens_per_s == pytest.approx(measured, rel=0.1)
    assert "AMD EPYC" in plan.speed_note
    assert plan.calibrated


def test_without_measured_adapters_the_assumed_part_is_taken() -> None:
    calibration = read_calibration(MEASURED)
    without = replace(calibration, medians={row: of for row, of in calibration.medians.items() if row != "lora-50"})
    question = read_question({"model": "smollm2-135m", "gpu_gib": "24", "max_seqs": "64", "lora_part": "0.5"})
    lora, steering = (way(make_plan(question, without), key).operation for key in ("lora", "steering"))
    assert lora is not None and steering is not None
    assert lora.most_tokens_per_s == pytest.approx(steering.most_tokens_per_s / 2)


def test_the_roofline_is_the_slower_of_reading_and_reckoning() -> None:
    from jobs.planner.speed import Roofline

    shape, hardware = PRESETS["llama-3.1-8b"], Hardware()
    best = Roofline(shape, hardware)
    assert best.inter_token_s(1, 0) == pytest.approx(shape.weight_bytes / 3350e9)
    assert best.first_token_s(1, 10_000) == pytest.approx(2 * shape.parameters * 10_000 / 989e12)
    traffic = Traffic(1, 100, 11)
    assert batch_s(best, 1, traffic) == pytest.approx(best.first_token_s(1, 100) + 10 * best.inter_token_s(1, 105.5))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rank", "0", "rank: expected a whole number from 1 to 512, found 0"),
        ("rank", "sixteen", "rank: expected a whole number, found 'sixteen'"),
        ("gpu_gib", "-1", "gpu_gib"),
        ("gpu_gib", "nan", "gpu_gib"),
        ("gpus", "3", "gpus: expected 1, 2, 4, 8 or 16, found 3"),
        ("bus", "isa", "bus: expected pcie3 or pcie4"),
        ("personas", "0", "personas"),
        ("personas", "10001", "10,000"),
        ("zipf_s", "-1", "zipf_s"),
        ("price", "-1", "price"),
        ("requests_per_s", "0", "requests_per_s"),
        ("context_tokens", "600", "context_tokens: expected 700 or more, for prompt and answer, found 600"),
        ("output_tokens", "9" * 30, "output_tokens"),
        ("layers_per_vector", "33", "layers_per_vector"),
        ("lora_part", "1.1", "lora_part"),
        ("utilization", "0", "utilization"),
        ("reserve_gib", "80", "reserve_gib"),
        ("modules", "lm_head", "modules"),
        ("model", "/etc", "model"),
    ],
)
def test_a_wrong_input_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message.replace("(", r"\(")):
        read_question({name: text})
    assert list(find_errors({name: text})) == [name]


@given(st.dictionaries(st.sampled_from([one.name for one in INPUTS]), st.text(max_size=12), max_size=4))
def test_any_text_is_a_plan_or_a_named_error(given_texts: dict[str, str]) -> None:
    try:
        question = read_question(given_texts)
    except PlanError as error:
        assert error.field in find_errors(given_texts) or len(find_errors(given_texts)) > 1
    else:
        assert find_errors(given_texts) == {}
        assert make_plan(question).ways


def test_amounts_are_shown_with_their_units() -> None:
    assert [show_bytes(size) for size in (8192, 999_999, 1e6, 2.4e9)] == ["8,192 B", "999,999 B", "1.0 MB", "2.40 GB"]
    shown = [show_s(seconds) for seconds in (0, 1.58e-7, 8.5e-4, 1.04e-3, 0.0123, 0.5, 12.34, 1234, math.inf)]
    assert shown == ["0", "0.16 µs", "850 µs", "1.04 ms", "12.3 ms", "500 ms", "12.3 s", "1,234 s", "no end"]
