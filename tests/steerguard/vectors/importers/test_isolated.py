"""Imports in a process of their own say what imports here say, and a process that dies is an error, not an answer."""

import os
import subprocess

import numpy as np
import pytest
import torch

from steerguard.vectors import VectorError
from steerguard.vectors.importers import ImportRequest, Source, Unanswered, import_vector
from steerguard.vectors.importers.isolated import ImportFailed, import_isolated
from tests.steerguard.vectors.importers import tools

pytestmark = pytest.mark.timeout(900)  # for torch to be imported, on a machine that is busy with other things

REQUEST = ImportRequest(hidden_size=8, num_layers=4, base_model="tiny", name="calm")
ROWS = {1: np.arange(1, 9, dtype=np.float32)}


@pytest.mark.parametrize("data", [tools.llama_cpp(ROWS), tools.saved(torch.ones(5, 8, dtype=torch.bfloat16))])
def test_it_is_the_same_import(data: bytes) -> None:
    here = import_vector(Source(data, "x.bin"), REQUEST)
    assert import_isolated(Source(data, "x.bin"), REQUEST) == here


def test_refusals_and_questions_come_back_as_they_are() -> None:
    with pytest.raises(VectorError) as refused:
        import_isolated(Source(b"GGUF"), REQUEST)
    assert refused.value.field == "version"
    with pytest.raises(Unanswered) as asked:
        import_isolated(Source(tools.npy(ROWS[1])), REQUEST)
    assert asked.value.field == "layer"


def test_the_process_has_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "do not tell")
    seen = {}

    class Done:
        returncode, stdout, stderr = 1, b"", b""

    def run(_command: list[str], **said: object) -> Done:
        seen.update(said)
        return Done()

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ImportFailed, match="status 1: no reason"):
        import_isolated(Source(tools.repeng(ROWS)), REQUEST)
    assert set(seen["env"]) == {"PYTHONPATH", "OMP_NUM_THREADS"}  # type: ignore[call-overload]
    assert "SECRET_KEY" in os.environ


def test_one_that_may_not_grow_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits hold: with too little memory for torch, the process fails and says so."""
    script = (
        "import sys, steerguard.vectors.importers.isolated as isolated\n"
        "isolated.MEMORY_BYTES = 48 * 1024 * 1024\n"
        "isolated.main(sys.stdin.buffer, sys.stdout.buffer)\n"
    )
    real = subprocess.run

    def run(command: list[str], **said: object) -> object:
        return real([command[0], "-P", "-c", script], **said)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises((ImportFailed, VectorError)):
        import_isolated(Source(tools.saved(torch.ones(4, 8))), REQUEST)
