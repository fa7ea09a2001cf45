"""Identity and storage: equal adapters are one folder, which only its owner may read."""

import json
import os
import shutil
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from steerguard.adapters import AdapterStore, CheckedAdapter, engine_id
from steerguard.adapters.canonical import digest_of
from tests.steerguard.adapters.conftest import Check
from tests.steerguard.adapters.making import CONFIG, WEIGHTS, edit_config, edit_tensors, name_of, save_adapter

Checked = Callable[[Path], CheckedAdapter]


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


def test_what_is_stored_is_the_owners_alone_and_named_by_its_digest(
    store: AdapterStore, adapter: Path, checked: Checked, check: Check
) -> None:
    digest = store.put(checked(adapter))
    folder = store.path_of(digest)
    assert (folder.name, digest_of(folder)) == (digest, digest)
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, WEIGHTS]
    for path, mode in ((folder.parent, 0o700), (folder, 0o700), (folder / CONFIG, 0o600), (folder / WEIGHTS, 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert sorted(path.name for path in folder.parent.iterdir()) == [".scratch", digest]
    assert check(folder) == {}
    assert {n: t.tolist() for n, t in load_file(folder / WEIGHTS).items()} == {
        n: t.tolist() for n, t in load_file(adapter / WEIGHTS).items()
    }


def test_what_makes_no_difference_when_serving_is_no_part_of_the_digest(
    store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    digest = store.put(checked(adapter))
    edit_config(adapter, lora_dropout=0.3, lora_alpha=8.0, inference_mode=False, peft_version="9", revision="x")
    edit_config(adapter, base_model_name_or_path="acme/Tiny-1B-Instruct", rank_pattern={"k_proj": 9, "q_proj": 4})
    tensors = load_file(adapter / WEIGHTS)
    save_file(dict(reversed(tensors.items())), adapter / WEIGHTS, metadata={"format": "pt", "made": "today"})
    assert store.put(checked(adapter)) == digest


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: edit_config(folder, lora_alpha=16),
        lambda folder: edit_config(folder, use_rslora=True),
        lambda folder: edit_config(folder, alpha_pattern={"layers.2.self_attn.q_proj": 3}),
        lambda folder: edit_tensors(folder, lambda t: t[name_of(2, "mlp.down_proj", "B")][0].add_(1)),
        lambda folder: edit_tensors(folder, lambda t: {n: x.to(torch.float16) for n, x in t.items()}),
    ],
)
def test_what_makes_a_difference_changes_the_digest(
    change: Callable[[Path], None], store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    before = store.put(checked(adapter))
    change(adapter)
    assert store.put(checked(adapter)) != before


def test_what_is_stored_means_to_peft_what_was_uploaded(
    store: AdapterStore, base: Path, tmp_path: Path, checked: Checked
) -> None:
    """Expressions become names, the embedding's copy goes, and the answers stay the same."""
    import transformers as hf
    from peft import PeftModel

    adapter = save_adapter(
        base, tmp_path / "adapter", target_modules=["q_proj", "model.embed_tokens", "lm_head"], use_rslora=True,
        layers_to_transform=[1, 3], rank_pattern={r"^model\.layers\.[01]\..*": 2}, alpha_pattern={"q_proj": 20},
    )  # fmt: skip
    folder = store.path_of(store.put(checked(adapter)))
    assert not any("base_layer" in name for name in load_file(folder / WEIGHTS))
    assert json.loads((folder / CONFIG).read_text())["rank_pattern"] == {"model.layers.1.self_attn.q_proj": 2}

    def logits(path: Path | None) -> torch.Tensor:
        model: Any = hf.AutoModelForCausalLM.from_pretrained(base)
        model = PeftModel.from_pretrained(model, path) if path else model
        with torch.no_grad():
            return model(input_ids=torch.tensor([[5, 9, 200, 31]])).logits

    assert torch.equal(logits(folder), logits(adapter))
    assert not torch.allclose(logits(folder), logits(None), atol=1e-3)


def test_storing_twice_keeps_the_first_and_leaves_no_draft(
    store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    digest = store.put(checked(adapter))
    made = (store.path_of(digest) / WEIGHTS).stat().st_ino
    assert store.put(checked(adapter)) == digest
    assert (store.path_of(digest) / WEIGHTS).stat().st_ino == made
    assert sorted(path.name for path in store.path_of(digest).parent.iterdir()) == [".scratch", digest]


def test_a_file_that_shrinks_while_it_is_stored_leaves_nothing(
    store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    found = checked(adapter)
    with (adapter / WEIGHTS).open("r+b") as file:
        file.truncate(2_000)
    with pytest.raises(OSError, match="ended inside"):
        store.put(found)
    assert [path.name for path in store.scratch().parent.iterdir()] == [".scratch"]


def age(folder: Path) -> None:
    os.utime(folder, (1, 1))


def test_what_nobody_needs_goes_and_what_is_new_or_needed_stays(
    store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    digests = []
    for alpha in (1, 2, 3):
        edit_config(adapter, lora_alpha=alpha)
        digests.append(store.put(checked(adapter)))
    needed, unneeded, new = digests
    for digest in (needed, unneeded):
        age(store.path_of(digest))
    assert store.collect_unused(lambda digests: {needed}, grace_s=600) == [unneeded]
    assert [store.has(digest) for digest in digests] == [True, False, True]
    assert store.collect_unused(lambda digests: {needed}, grace_s=600) == []
    assert digest_of(store.path_of(new)) == new


def test_storing_again_counts_as_new(store: AdapterStore, adapter: Path, checked: Checked) -> None:
    digest = store.put(checked(adapter))
    age(store.path_of(digest))
    assert store.put(checked(adapter)) == digest
    assert store.collect_unused(lambda digests: set(), grace_s=600) == []


def test_what_is_stored_or_needed_while_it_is_removed_stays(
    store: AdapterStore, adapter: Path, checked: Checked
) -> None:
    digest = store.put(checked(adapter))
    asked = []

    def needed_since(digests: Collection[str]) -> Collection[str]:
        asked.append(set(digests))
        return set() if len(asked) == 1 else digests

    age(store.path_of(digest))
    assert store.collect_unused(needed_since, grace_s=600) == []
    assert asked == [{digest}, {digest}]
    assert digest_of(store.path_of(digest)) == digest

    def stored_since(digests: Collection[str]) -> Collection[str]:
        store.put(checked(adapter))
        return set()

    age(store.path_of(digest))
    assert store.collect_unused(stored_since, grace_s=600) == []
    assert digest_of(store.path_of(digest)) == digest


def test_what_a_dead_process_left_goes(store: AdapterStore) -> None:
    root = store.scratch().parent
    left = [root / ".draft-x", root / ".removed-x", store.scratch() / "upload"]
    for folder in left:
        folder.mkdir()
        (folder / WEIGHTS).write_bytes(b"x")
    store.collect_unused(lambda digests: set(), grace_s=600)
    assert all(folder.exists() for folder in left)
    for folder in left:
        age(folder)
    store.collect_unused(lambda digests: set(), grace_s=600)
    assert not any(folder.exists() for folder in left)


@pytest.mark.parametrize("name", ["..", "../x", "", "a" * 63, "A" * 64, "a" * 64 + "\n", "/etc"])
def test_a_path_is_made_of_nothing_but_a_digest(store: AdapterStore, name: str) -> None:
    with pytest.raises(ValueError, match="64 lowercase"):
        store.path_of(name)


def test_an_engines_id_tells_tenants_apart_and_tells_nothing() -> None:
    ids = {engine_id(tenant, digest) for tenant in ("1", "2") for digest in ("a" * 64, "b" * 64)}
    assert len(ids) == 4
    assert engine_id("1", "a" * 64) in ids
    assert all(len(one) == 36 and one.startswith("sga-") and one[4:].isalnum() for one in ids)


def test_the_store_survives_a_copy(store: AdapterStore, adapter: Path, checked: Checked, tmp_path: Path) -> None:
    """A digest is of what is in the files, so that a backup can be checked."""
    digest = store.put(checked(adapter))
    shutil.copytree(store.path_of(digest), tmp_path / "backup")
    assert digest_of(tmp_path / "backup") == digest
    edit_config(tmp_path / "backup", r=8)
    assert digest_of(tmp_path / "backup") != digest
