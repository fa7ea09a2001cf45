"""The articles' arithmetic. Each test names the sentence that it does again."""

import re

import pytest
from django.conf import settings

from jobs.planner.adapters import PAGE_BYTES, AdapterShape, adapter_bytes, pages
from jobs.planner.articles import findings
from jobs.planner.hardware import BUSES
from jobs.planner.inputs import read_question
from jobs.planner.plan import make_plan
from jobs.planner.shape import ATTENTION_MODULES, LINEAR_MODULES, PRESETS
from jobs.planner.vectors import steering_bytes

LLAMA_8B, LLAMA_70B = PRESETS["llama-3.1-8b"], PRESETS["llama-3.3-70b"]


def test_float32_residual_additions_of_about_8_kb_per_vector() -> None:
    """ "pre-loaded Float32 residual additions (≈ 8 KB per vector)": 8 KB is the bfloat16 row; float32 is twice that."""
    plan = make_plan(read_question({"model": "llama-3.1-8b"}))
    assert plan.steering.vector == 8 * 1024
    assert plan.steering.vector_file == 16 * 1024


def test_2_4_gb_of_adapter_weights_for_50_adapters() -> None:
    """ "VRAM Memory Overhead ~2.4 GB (Adapter Weights)": 48 MB each, which of all ranks rank 28 of q, k, v, o has."""
    plan = make_plan(read_question({"personas": "50", "rank": "28"}))
    assert plan.adapters_bytes == pytest.approx(2.4e9, rel=0.01)
    usual = [
        50 * adapter_bytes(LLAMA_8B, AdapterShape(rank, modules))
        for rank in (8, 16, 32, 64)
        for modules in (ATTENTION_MODULES, LINEAR_MODULES, ("q_proj", "v_proj"))
    ]
    assert not [size for size in usual if size == pytest.approx(2.4e9, rel=0.05)]


def test_under_1_mb_of_residual_tensors_for_50_vectors() -> None:
    """ "< 1 MB (Residual Tensors)": with 50 requests at once and a block a vector, index buffers included."""
    plan = make_plan(read_question({"personas": "50", "max_seqs": "50"}))
    assert plan.steering.allocated == 873_088  # what the benchmark measured of the buffers themselves
    assert plan.steering.allocated < 1e6
    three_blocks = make_plan(read_question({"personas": "50", "max_seqs": "50", "layers_per_vector": "3"}))
    assert three_blocks.steering.allocated > 2e6


def test_as_the_plugin_comes_it_sets_aside_more_than_1_mb() -> None:
    found = steering_bytes(
        LLAMA_8B,
        personas=50,
        vectors_per_persona=1,
        layers_per_vector=1,
        max_seqs=256,
        max_batched_tokens=8192,
        limit_layers=False,
    )
    assert found.allocated == pytest.approx(134e6, rel=0.01)


def test_a_rank_16_adapter_of_55_mb() -> None:
    """ "a rank-16 adapter (approx. 55MB)" of Llama 3.3 70B: that is Llama-3.1-8B's in float32; the 70B's is 131 MB."""
    adapter = AdapterShape(16, ATTENTION_MODULES)
    assert adapter_bytes(LLAMA_8B, adapter, itemsize=4) == pytest.approx(55e6, rel=0.01)
    assert adapter_bytes(LLAMA_70B, adapter) == pytest.approx(131.1e6, rel=0.001)
    assert adapter_bytes(LLAMA_70B, AdapterShape(16, ("q_proj", "v_proj"))) > 60e6


def test_55_mb_in_0_85_ms_over_pcie_5() -> None:
    """ "On PCIe Gen 5 (64 GB/s): Transferring a rank-16 adapter (approx. 55MB) takes 0.85ms": at the bus's peak."""
    assert BUSES["pcie5"].transfer_s(55e6, peak=True) == pytest.approx(0.85e-3, rel=0.02)
    assert BUSES["pcie5"].transfer_s(55e6) == pytest.approx(1.04e-3, rel=0.01)


def test_31_percent_higher() -> None:
    """ "~1,840 tok/s" against "~2,410 tok/s (+31% higher)"."""
    assert pytest.approx(1.31, abs=0.005) == 2410 / 1840


def test_fixed_16_mb_blocks() -> None:
    """ "allocating fixed 16MB blocks": the plan has them; S-LoRA's own page is a vector of the model's width, 16 KB."""
    assert PAGE_BYTES == 16 * 2**20
    assert pages(adapter_bytes(LLAMA_70B, AdapterShape(16, ATTENTION_MODULES))) == 8
    assert LLAMA_70B.hidden * LLAMA_70B.itemsize == 16 * 1024


def test_findings_say_which_sentences_do_not_add_up() -> None:
    found = findings()
    assert len({finding.article for finding in found}) == 3
    wrong = [finding.sentence for finding in found if not finding.adds_up]
    for words in ("2.4 GB", "8 KB", "12ms", "55MB", "16MB", "14 concurrent", "503", "mistral-7b-json-extract"):
        assert any(words in sentence for sentence in wrong), words
    for finding in found:
        assert re.search(r"\d", finding.recomputed), finding.sentence


def test_the_guide_says_what_the_code_reckons() -> None:
    guide = (settings.BASE_DIR / "docs" / "planner.md").read_text()
    for finding in findings():
        verdict = "adds up" if finding.adds_up else "**does not add up**"
        assert f"“{finding.sentence}” | {finding.recomputed} | {verdict} |" in guide
