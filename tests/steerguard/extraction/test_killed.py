"""kill -9 in the middle of an extraction, and the same call again."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from steerguard.extraction.extract import extract_vector
from steerguard.extraction.pairs import Pair, read_pairs, write_pairs
from tests.engine import REPOSITORY

pytestmark = pytest.mark.slow

PAIRS = [Pair(f"Question {n}? " + "word " * 60, "yes " * (20 + n), "no " * (20 + n % 7)) for n in range(60)]
KILLED_AFTER = 2  # batches

CHILD = """
import os, signal, sys
from pathlib import Path
import torch
from steerguard.extraction.activations import load_language_model
from steerguard.extraction.extract import extract_vector
from steerguard.extraction.pairs import read_pairs

torch.set_num_threads(1)
model, pairs, work, killed_after = sys.argv[1:]
seen = []

def kill(answers):
    seen.append(answers)
    if len(seen) == int(killed_after):
        os.kill(os.getpid(), signal.SIGKILL)

extract_vector(load_language_model(model), read_pairs(pairs), layers=range(4), work=Path(work), on_progress=kill)
"""


def test_a_killed_extraction_goes_on_and_gives_the_same_vector(tmp_path, tiny, tiny_model_folder):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_bytes(write_pairs(PAIRS))
    work = tmp_path / "work"
    command = [sys.executable, "-c", CHILD, str(tiny_model_folder), str(pairs), str(work), str(KILLED_AFTER)]
    assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == -signal.SIGKILL
    assert json.loads((work / "manifest.json").read_text())["batches"] == [0, 1]
    finished = np.load(work / "means.npy").any(axis=(0, 2))
    assert 0 < finished.sum() < 2 * len(PAIRS)

    again = extract_vector(tiny, read_pairs(pairs), layers=range(4), work=work)
    whole = extract_vector(tiny, read_pairs(pairs), layers=range(4))
    assert again.vector.digest == whole.vector.digest
    assert again.separability == whole.separability
