"""schemathesis asks the inference API what docs/openapi.yaml says of it, through a real server with a stub engine.

As nobody, with a key of inference and with one that may only read: no 5xx, and no status that isn't described.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
import yaml
from django.conf import settings
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from personas import services
from personas.models import Persona, Tenant
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import StubEngine

pytestmark = [pytest.mark.slow]

EXAMPLES = 10  # of each operation and role
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scope", [None, "inference", "read"])
def test_whatever_is_asked_the_answer_is_a_described_one(
    scope: str | None, gateway: Gateway, stub: StubEngine, acme: Tenant, support: Persona
) -> None:
    headers = {}
    if scope is not None:
        headers["Authorization"] = f"Bearer {services.issue_api_key(tenant=acme, name='a', scopes=[scope])[1]}"
    document: Any = yaml.load(
        (Path(settings.BASE_DIR) / "docs" / "openapi.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
    )
    schema = schemathesis.openapi.from_dict(document)
    found = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    operations = [one for one in found if one.path.startswith("/v1/") and "inference" in (one.tags or [])]
    assert len(operations) >= 6
    for operation in operations:
        check(operation, gateway.url, headers)


def check(operation: Any, url: str, headers: dict[str, str]) -> None:
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)

    @hypothesis.seed(4)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(
        case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)),
        model=st.sampled_from([None, "support", "acme/support", "acme/support@1", "SmolLM2-135M-Instruct"]),
    )
    def answers(case: Any, model: str | None) -> None:
        if model is not None and isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = model
        case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=30)

    answers()
