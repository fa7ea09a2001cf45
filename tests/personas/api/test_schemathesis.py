"""schemathesis asks every operation of the management API, as each role: no 5xx, and no answer that isn't described.

Half of what it asks is what the schema allows, half is not; about acme's own things, and about things of any name. What
an example did is taken back. tests/inference/gateway covers the inference API, which needs an engine.
"""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from django.db import transaction
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from inference import services as inference_services
from personas.models import Tenant
from tests.personas.api.conftest import Api, Things

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

ROLES = ("nobody", "viewer", "editor", "owner", "staff", "read key", "manage key")
EXAMPLES = 4  # of each operation, role and kind
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture
def asker(role: str, request: pytest.FixtureRequest, acme: Tenant) -> Api:
    if role.endswith("key"):
        api: Api = request.getfixturevalue("with_key")(acme, role.split()[0])
    else:
        api = request.getfixturevalue(role)
    return api


@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", ROLES)
def test_whatever_is_asked_the_answer_is_a_described_one(role: str, asker: Api, things: Things) -> None:
    inference_services.register_engine(name="gpu-1", url="http://10.0.0.5:8000")
    known = {
        "tenant": "acme",
        "persona": "support",
        "prefix": things.key.prefix,
        "digest": things.vector.digest,
        "adapter": things.adapter.digest,
        "user": "alice",
        "number": 1,
        "engine": "gpu-1",
    }
    schema = schemathesis.openapi.from_dict(asker.get("openapi.json").json())
    schema.location = "http://testserver/api/v1/openapi.json"
    operations = [found.ok() for found in schema.get_all_operations()]  # type: ignore[union-attr]
    operations = [one for one in operations if one.path.startswith("/api/v1/") and "{job}" not in one.path]
    assert len(operations) > 35
    for operation in operations:
        check(operation, asker, {name: known[name] for name in known if f"{{{name}}}" in operation.path})


def check(operation: Any, asker: Api, known: dict[str, Any]) -> None:
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    cases = st.one_of(
        *(operation.as_strategy(generation_mode=mode, path_parameters=known) for mode in modes),
        *(operation.as_strategy(generation_mode=mode) for mode in modes if known),
    )

    @hypothesis.seed(4)
    @hypothesis.settings(
        max_examples=EXAMPLES * 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=cases)
    def answers(case: Any) -> None:
        with transaction.atomic():
            response = asked(case, asker)
            transaction.set_rollback(True)
        case.validate_response(response, checks=CHECKS)

    answers()


def asked(case: Any, asker: Api) -> schemathesis.Response:
    """What Django's own client is answered, in the test's transaction."""
    sent = requests.Request(**case.as_transport_kwargs(base_url="http://testserver")).prepare()
    body = sent.body.encode() if isinstance(sent.body, str) else sent.body or b""
    said = {name: latin(value) for name, value in sent.headers.items()}
    kind = said.pop("Content-Type", "")
    answer = asker.client.generic(
        str(sent.method), sent.path_url, body, content_type=kind, headers={**said, **asker.headers}
    )
    headers = {name: [value] for name, value in answer.headers.items()}
    content = b"".join(answer) if answer.streaming else answer.content
    return schemathesis.Response(answer.status_code, headers, content, sent, elapsed=0.0, verify=False)


def latin(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
