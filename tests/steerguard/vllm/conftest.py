"""The session's engine with the tests' vectors on it, and the reference that it is compared with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import TestEngine
from tests.steerguard.vllm.over_http import VECTORS, delete, put
from tests.steerguard.vllm.reference import Reference


@pytest.fixture(scope="module")
def server(engine: TestEngine) -> Iterator[TestEngine]:
    for vector in VECTORS.values():
        assert put(engine, vector).status_code == 201
    yield engine
    for vector in VECTORS.values():
        assert delete(engine, vector) == 200


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Reference:
    return Reference(demo_model)
