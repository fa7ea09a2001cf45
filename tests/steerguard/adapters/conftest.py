"""One base model and one good adapter for all of these tests; each test breaks a copy of its own."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steerguard.adapters import BaseModel, CheckedAdapter, Problems, check_adapter, check_files, open_source
from steerguard.adapters.base_model import read_base_model
from tests.steerguard.adapters.making import save_adapter, save_base

MAX_LORA_RANK = 16

Check = Callable[..., dict[str, tuple[str, str]]]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("models") / "Tiny-1B-Instruct")


@pytest.fixture(scope="session")
def good_adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(base, tmp_path_factory.mktemp("adapters") / "good", target_modules=["q_proj", "down_proj"])


@pytest.fixture
def adapter(good_adapter: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(good_adapter, tmp_path / "adapter"))


@pytest.fixture
def check(base: Path) -> Check:
    """What is wrong with an adapter for the base, by field: (expected, found)."""

    def check(path: Path, *, model: Path = base, max_lora_rank: int = MAX_LORA_RANK, **more: object) -> dict:
        problems = check_adapter(path, model, max_lora_rank=max_lora_rank, **more)  # type: ignore[arg-type]
        return {problem.field: (problem.expected, problem.found) for problem in problems}

    return check


@pytest.fixture
def base_model(base: Path) -> BaseModel:
    return read_base_model(base)


@pytest.fixture
def checked(base_model: BaseModel) -> Iterator[Callable[[Path], CheckedAdapter]]:
    """The checked adapter of a folder in which nothing is wrong."""

    def checked(path: Path) -> CheckedAdapter:
        problems = Problems()
        with open_source(path, problems) as files:
            found = check_files(files, base_model, problems, max_lora_rank=MAX_LORA_RANK)
        assert found is not None, problems.listed()
        return found

    yield checked
