"""The check beside the pinned vLLM: what is accepted is served as peft serves it, and what is refused for vLLM's sake
fails there, or is served as something else."""

import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from peft import PeftModel

from steerguard.adapters import AdapterStore, Problems, check_files, open_source, read_base_model
from steerguard.adapters.architectures import ARCHITECTURES, WITHOUT_LORA
from tests.steerguard.adapters.conftest import MAX_LORA_RANK
from tests.steerguard.adapters.making import edit_config, edit_tensors, name_of, save_adapter
from tests.steerguard.adapters.vllm_answers import PROMPT, TOKENS

pytestmark = pytest.mark.slow

ACCEPTED: dict[str, dict[str, Any]] = {
    "attention": {},
    "all-linear": {"target_modules": "all-linear"},
    "rslora": {"use_rslora": True, "rank_pattern": {"k_proj": 16}},
    "patterns": {"rank_pattern": {r"^model\.layers\.[01]\..*": 2}, "alpha_pattern": {r".*\.o_proj": 30}},
    "some-layers": {"layers_to_transform": [1, 3], "target_modules": ["down_proj", "q_proj"]},
    "both-ends": {"target_modules": ["embed_tokens", "lm_head", "v_proj"]},
}
FAILS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "rank-32": {"r": 32},
    "bias": {"bias": "all"},
    "pissa": {"init_lora_weights": "pissa"},
    "whole-module": {"modules_to_save": ["lm_head"]},
}


@pytest.fixture(scope="module")
def folder(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters that vLLM is asked about, each by its name."""
    root = tmp_path_factory.mktemp("adapters")
    for name, settings in {**ACCEPTED, **FAILS}.items():
        save_adapter(base, root / name, seed=len(name), **settings)
    shutil.copytree(root / "attention", root / "wrong-rank")
    edit_config(root / "wrong-rank", r=2)
    shutil.copytree(root / "attention", root / "zz-nan")
    edit_tensors(root / "zz-nan", lambda t: t[name_of(0, "self_attn.q_proj", "B")].fill_(math.nan))
    shutil.copytree(root / "attention", root / "wrong-width")
    edit_tensors(
        root / "wrong-width",
        lambda t: {n: x[:, :64] if n.endswith("q_proj.lora_A.weight") else x for n, x in t.items()},
    )
    shutil.copytree(root / "attention", root / "layers-missing")
    edit_tensors(root / "layers-missing", lambda t: {n: x for n, x in t.items() if ".layers.3." not in n})
    shutil.copytree(root / "attention", root / "layers-beyond")
    edit_tensors(
        root / "layers-beyond", lambda t: {**t, **{n.replace("layers.3.", "layers.9."): x for n, x in t.items()}}
    )
    shutil.copytree(root / "attention", root / "another-name")
    edit_tensors(root / "another-name", lambda t: {n.replace("lora_A.", "lora_A.default."): x for n, x in t.items()})
    return root


@pytest.fixture(scope="module")
def asked(base: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """vLLM's answers: to the adapters as they were made, and to the accepted ones as they are stored."""
    store = AdapterStore(tmp_path_factory.mktemp("data") / "adapters")
    stored = tmp_path_factory.mktemp("asked")
    for path in folder.iterdir():
        shutil.copytree(path, stored / path.name)
        problems = Problems()
        with open_source(path, problems) as files:
            checked = check_files(files, read_base_model(base), problems, max_lora_rank=MAX_LORA_RANK)
            assert (checked is not None) == (path.name in ACCEPTED), problems.listed()
            if checked is not None:
                shutil.copytree(store.path_of(store.put(checked)), stored / f"{path.name}.stored")
    command = [sys.executable, "-m", "tests.steerguard.adapters.vllm_answers", str(base), str(stored)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert lines, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("ANSWERS "))
    return found


def peft_answer(base: Path, adapter: Path | None) -> tuple[list[int], list[float]]:
    """Greedy tokens and their logprobs."""
    model: Any = hf.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter) if adapter else model
    tokens: list[int] = []
    logprobs: list[float] = []
    with torch.no_grad():
        for _ in range(TOKENS):
            scores = model(input_ids=torch.tensor([PROMPT + tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
    return tokens, logprobs


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_accepted_is_served_as_peft_serves_it(
    name: str, base: Path, folder: Path, asked: dict[str, Any]
) -> None:
    tokens, logprobs = peft_answer(base, folder / name)
    assert peft_answer(base, None)[1] != pytest.approx(logprobs, abs=1e-3), "the adapter makes no difference"
    for one in (name, f"{name}.stored"):
        assert isinstance(asked[one], dict), asked[one]
        assert asked[one]["tokens"] == tokens, one
        assert asked[one]["logprobs"] == pytest.approx(logprobs, abs=1e-3), one


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", [*FAILS, "another-name"])
def test_what_vllm_can_not_load_is_refused_before(name: str, asked: dict[str, Any]) -> None:
    assert isinstance(asked[name], str), asked[name]


@pytest.mark.timeout(1_200)
def test_what_vllm_loads_and_serves_as_something_else_is_refused_before(asked: dict[str, Any]) -> None:
    right = asked["attention"]["logprobs"]
    for name in ("wrong-rank", "layers-missing", "wrong-width"):
        assert asked[name]["logprobs"] != pytest.approx(right, abs=1e-3), name
    assert asked["layers-beyond"]["logprobs"] == pytest.approx(right, abs=1e-3), "what is beyond is dropped in silence"
    assert isinstance(asked["zz-nan"], dict), "a NaN loads"


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_vllms_class_takes_lora_on_the_embeddings_that_are_listed(architecture: str) -> None:
    cls = _class_of(architecture)
    assert cls.supports_lora
    known = ARCHITECTURES[architecture]
    assert {name.rpartition(".")[2] for name in known.embeddings} == set(cls.embedding_modules)
    # What vLLM packs into one layer is asked of adapters part by part, under these names.
    asked_for = {name for parts in cls.packed_modules_mapping.values() for name in parts}
    assert asked_for <= {name.rpartition(".")[2] for name in known.block_modules}


@pytest.mark.parametrize("architecture", sorted(WITHOUT_LORA))
def test_vllms_class_takes_none(architecture: str) -> None:
    assert not getattr(_class_of(architecture), "supports_lora", False)


def _class_of(architecture: str) -> Any:
    from vllm.model_executor.models import registry

    module, name = {**registry._TEXT_GENERATION_MODELS, **registry._TRANSFORMERS_SUPPORTED_MODELS}[architecture]
    return getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
