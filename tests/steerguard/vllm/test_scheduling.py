"""Aborts, removal and crowding on both model runners, each answer that of Hugging Face with hooks."""

from typing import Any

import numpy as np
import pytest

from tests.steerguard.vllm.reference import LOGPROB_TOLERANCE, Reference
from tests.steerguard.vllm.runners import V1, V2, answer_of, needs_triton
from tests.steerguard.vllm.tiny_models import HIDDEN_SIZE, LAYERS
from tests.steerguard.vllm.tiny_scheduling import MAX_SEQS, Part, Scene, vector_of

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

Found = dict[str, Any]


@pytest.fixture(scope="module", params=["V1", pytest.param("V2", marks=needs_triton)])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Found, Reference]:
    """All scenes, played once on each runner, and the model that they were played on."""
    folder = tmp_path_factory.mktemp("model")
    environment = {"V1": V1, "V2": V2}[request.param]
    found = answer_of("tests.steerguard.vllm.tiny_scheduling", str(folder), environment=environment)
    return found, Reference(folder)


def row(parts: list[Part], phase: str) -> dict[int, np.ndarray]:
    rows: dict[int, np.ndarray] = {}
    for seed, alpha, positions in parts:
        if positions in ("all", phase):
            ((block, values),) = vector_of(seed).layers.items()
            rows[block] = rows.get(block, np.zeros(HIDDEN_SIZE, np.float32)) + np.float32(alpha) * values
    return rows


def assert_as_in_the_reference(scene: Scene, reference: Reference) -> None:
    for entry in scene:
        assert entry["finished"]
        tokens, logprobs = reference.greedy_with_logprobs(
            entry["prompt"],
            len(entry["tokens"]),
            prompt_row=row(entry["parts"], "prompt"),
            response_row=row(entry["parts"], "response"),
        )
        about = f"{entry['parts']}, prompt of {len(entry['prompt'])}"
        assert entry["tokens"] == tokens, about
        assert entry["logprobs"] == pytest.approx(logprobs, abs=LOGPROB_TOLERANCE), about


def test_an_abort_half_way_changes_no_neighbor_and_nothing_later(run: tuple[Found, Reference]) -> None:
    found, reference = run[0]["abort"], run[1]
    assert all(tokens > 0 and not finished for tokens, finished in found["half_way"].values())
    assert found["in_use"] == [True, False]
    assert_as_in_the_reference(found["scene"], reference)


def test_a_vector_in_use_stays_until_its_requests_are_done(run: tuple[Found, Reference]) -> None:
    found, reference = run[0]["removal"], run[1]
    refused, too_late = found["said"]
    assert "in use" in refused
    assert found["digest"] in too_late
    assert not found["held_after"]
    assert_as_in_the_reference(found["scene"], reference)


def test_more_blends_than_rows_each_get_their_own(run: tuple[Found, Reference]) -> None:
    found, reference = run[0]["crowd"], run[1]
    assert found["after"]["rows_total"] == 2 * MAX_SEQS
    assert found["after"]["row_evictions"] - found["before"]["row_evictions"] >= LAYERS
    assert_as_in_the_reference(found["scene"], reference)


def test_a_skill_that_is_registered_anew_reuses_no_kv_of_the_old_one(run: tuple[Found, Reference]) -> None:
    found, reference = run[0]["rename"], run[1]
    assert [entry["cached"] for entry in found["scene"]] == [0, 0, 64]
    assert found["scene"][0]["tokens"] != found["scene"][1]["tokens"]
    assert_as_in_the_reference(found["scene"], reference)
