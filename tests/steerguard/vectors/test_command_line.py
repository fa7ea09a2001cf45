"""`python -m steerguard vectors …`: one JSON line and 0; a reason and 2; a question and 3."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steerguard.__main__ import main
from steerguard.vectors import SteeringVector, read_vector, write_vector
from tests.steerguard.vectors.importers import tools

ROW = np.arange(1, 9, dtype=np.float32)
MODEL = ["--hidden-size", "8", "--layers", "4"]


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the printed object and what standard error says."""
    status = main(["vectors", *arguments])
    printed = capsys.readouterr()
    if status:
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return status, None, printed.err
    assert printed.out.count("\n") == 1
    return status, json.loads(printed.out), printed.err


def test_import_says_what_it_understood_and_writes_nothing(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("calm.gguf").write_bytes(tools.repeng({1: ROW, 2: ROW}))
    status, said, _ = run(capsys, "import", "calm.gguf", *MODEL)
    assert status == 0
    assert (said["format"], said["blocks"], said["hidden_size"], said["warnings"]) == ("repeng", [1, 2], 8, [])
    assert said["digest"] == SteeringVector({1: ROW, 2: ROW}, 8).digest
    assert (said["norm"], said["name"]) == ("raw", "calm")
    assert [path.name for path in in_folder.iterdir()] == ["calm.gguf"]


def test_import_writes_the_canonical_file(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("calm.npy").write_bytes(tools.npy(ROW))
    arguments = ("import", "calm.npy", *MODEL, "--layer", "2", "--out", "made", "--base-model", "tiny")
    status, said, _ = run(capsys, *arguments)
    assert (status, said["out"]) == (0, "made/calm.safetensors")
    vector = read_vector("made/calm.safetensors")
    assert (vector.digest, vector.name, vector.base_model) == (said["digest"], "calm", "tiny")
    assert run(capsys, *arguments)[0] == 0, "the same again"
    Path("calm.npy").write_bytes(tools.npy(ROW + 1))
    status, _, reason = run(capsys, *arguments)
    assert (status, "no other file in its place" in reason) == (2, True)
    assert read_vector("made/calm.safetensors") == vector
    assert run(capsys, *arguments, "--name", "calmer")[1]["out"] == "made/calmer.safetensors"
    assert run(capsys, *arguments, "--name", "../escape")[0] == 2


@pytest.mark.parametrize(
    ("data", "arguments", "option"),
    [
        (tools.npy(ROW), (), "--layer"),
        (tools.saved(torch.from_numpy(ROW)), (), "--layer"),
        (tools.npy(np.ones((3, 8))), (), "--rows"),
        (tools.saved(torch.ones(3, 8)), (), "--format"),
    ],
)
def test_a_question_is_3_and_says_the_option(
    data: bytes, arguments: tuple[str, ...], option: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("open").write_bytes(data)
    status, _, reason = run(capsys, "import", "open", *MODEL, *arguments, "--out", "made")
    assert status == 3
    assert f"say {option} (" in reason
    assert not Path("made").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("none", (), "none"),
        (".", (), "file: expected a regular file, found a folder"),
        ("link", (), "file: expected a regular file, found a symbolic link"),
        ("calm.npy", ("--layer", "4"), "layer: expected a whole number from 0 to 3, found 4"),
        ("calm.npy", ("--layer", "1", "--format", "repeng"), "file: expected GGUF, for format repeng, found npy"),
        ("calm.npy", ("--layer", "1", "--format", "onnx"), "format: expected one of canonical, repeng,"),
        ("calm.npy", ("--layer", "1", "--hidden-size", "9"), "shape [9] (hidden_size)"),
        ("calm.npy", ("--layer", "1", "--index", "left"), "index: expected measured or applied, found 'left'"),
    ],
)
def test_a_refusal_is_2_and_says_why(
    name: str, arguments: tuple[str, ...], reason: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("calm.npy").write_bytes(tools.npy(ROW))
    Path("link").symlink_to("calm.npy")
    status, _, said = run(capsys, "import", name, *MODEL, *arguments, "--out", "made")
    assert status == 2
    assert reason in said
    assert not Path("made").exists()


def test_the_conventions_are_options(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("l.gguf").write_bytes(tools.llama_cpp({1: ROW, 2: ROW}))
    assert run(capsys, "import", "l.gguf", *MODEL)[1]["blocks"] == [0, 1]
    assert run(capsys, "import", "l.gguf", *MODEL, "--index", "applied")[1]["blocks"] == [1, 2]
    Path("m.npy").write_bytes(tools.npy(tools.matrix({1: ROW, 2: ROW}, rows=5)))
    said = run(capsys, "import", "m.npy", *MODEL, "--zero-rows", "skip")[1]
    assert (said["blocks"], said["convention"]) == (
        [0, 1],
        "row L is what block L-1 puts out; row 0, the embeddings, is left out",
    )


def test_export_and_show(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = SteeringVector({0: ROW, 2: ROW}, 8, "tiny", "calm", {"method": "hand"})
    Path("calm.safetensors").write_bytes(write_vector(vector))
    status, said, _ = run(capsys, "show", "calm.safetensors")
    assert (status, said["blocks"], said["digest"]) == (0, [0, 2], vector.digest)
    assert said["provenance"] == {"method": "hand"}
    assert run(capsys, "export", "calm.safetensors", "--format", "repeng", "--out", "calm.gguf")[0] == 0
    assert run(capsys, "import", "calm.gguf", *MODEL)[1]["digest"] == vector.digest
    status, _, reason = run(capsys, "export", "calm.safetensors", "--format", "llama.cpp", "--out", "l.gguf")
    assert (status, "can't steer block 0" in reason) == (2, True)
    assert run(capsys, "export", "calm.safetensors", "--format", "cast", "--out", "l.gguf")[0] == 2
    assert run(capsys, "show", "calm.gguf")[0] == 2
    assert not Path("l.gguf").exists()
