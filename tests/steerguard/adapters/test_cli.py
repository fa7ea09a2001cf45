"""`python -m steerguard adapters check`, as a shell sees it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steerguard.__main__ import main
from tests.steerguard.adapters.making import CONFIG, edit_config


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict]:
    status = main(["adapters", "check", *map(str, arguments)])
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    return status, json.loads(printed)


def test_a_good_adapter_is_ok(adapter: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, adapter, "--base", base, "--max-lora-rank", 16) == (0, {"ok": True, "problems": []})


def test_problems_are_listed_by_field(adapter: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(adapter, use_dora=True)
    status, printed = run(capsys, adapter, "--base", base, "--max-lora-rank", 2)
    assert (status, printed["ok"]) == (2, False)
    assert [problem["field"] for problem in printed["problems"]] == ["use_dora", "r"]
    assert printed["problems"][1] == {
        "field": "r",
        "expected": "at most 2 (the engine's max_lora_rank)",
        "found": "4",
    }


@pytest.mark.parametrize("what", ["path", "base", "both"])
def test_what_is_missing_is_a_problem_too(
    what: str, adapter: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = adapter if what == "base" else tmp_path / "nothing"
    model = base if what == "path" else tmp_path / "no model"
    status, printed = run(capsys, path, "--base", model, "--max-lora-rank", 16)
    fields = [problem["field"] for problem in printed["problems"]]
    assert (status, fields) == (2, ["base", "path"] if what == "both" else [what])


def test_a_rank_that_is_none_is_a_problem(adapter: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, printed = run(capsys, adapter, "--base", base, "--max-lora-rank", 0)
    assert (status, printed["problems"][0]["field"]) == (2, "max_lora_rank")


def test_the_base_may_have_other_names(adapter: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(adapter, base_model_name_or_path="acme/other")
    arguments = (adapter, "--base", base, "--max-lora-rank", 16)
    assert run(capsys, *arguments)[0] == 2
    assert run(capsys, *arguments, "--base-name", "acme/other", "--name-policy", "exact")[0] == 0


def test_from_a_shell_it_needs_neither_torch_nor_peft(adapter: Path, base: Path, tmp_path: Path) -> None:
    """A web server checks uploads: what brings seconds and gigabytes isn't imported for that."""
    for name in ("torch", "peft", "transformers", "vllm", "django"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')")
    command = [sys.executable, "-m", "steerguard", "adapters", "check", str(adapter), "--base", str(base)]
    done = subprocess.run(
        [*command, "--max-lora-rank", "16"], env={"PYTHONPATH": f"{tmp_path}:."}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"ok": true, "problems": []}\n', "")
    (adapter / CONFIG).unlink()
    done = subprocess.run([*command, "--max-lora-rank", "16"], capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (2, False)
