from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from steerguard.extraction.activations import LanguageModel, load_language_model
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny(tiny_model_folder: Path) -> Iterator[LanguageModel]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_language_model(tiny_model_folder)
    torch.set_num_threads(threads)
