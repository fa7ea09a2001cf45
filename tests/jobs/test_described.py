"""schemathesis asks for jobs, files and batches what docs/openapi.yaml says of them, through a real server.

As nobody, with a key of inference and with one that may only read: no 5xx, and no status that isn't described. Half of
the time the path names something that is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
import yaml
from django.conf import settings
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from personas import services
from personas.models import Tenant
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.test_described import CHECKS
from tests.jobs.conftest import Work
from tests.jobs.test_batches import as_file, line
from tests.jobs.test_batches import make as make_batch
from tests.jobs.test_files import upload
from tests.jobs.test_jobs import make
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow]

EXAMPLES = 20  # of each operation and role


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scope", [None, "inference", "read"])
def test_whatever_is_asked_the_answer_is_a_described_one(
    scope: str | None, program: httpx.Client, gateway: Gateway, acme: Tenant, work: Work
) -> None:
    job, batch = make(program), make_batch(program, as_file([line("1")]))
    work().join(PATIENCE_S)  # so that watching ends
    headers = {}
    if scope is not None:
        headers["Authorization"] = f"Bearer {services.issue_api_key(tenant=acme, name='a', scopes=[scope])[1]}"
    text = (Path(settings.BASE_DIR) / "docs" / "openapi.yaml").read_text(encoding="utf-8")
    document: Any = yaml.load(text, Loader=yaml.CSafeLoader)
    found = [one.ok() for one in schemathesis.openapi.from_dict(document).get_all_operations()]  # type: ignore[union-attr]
    operations = [one for one in found if "jobs" in (one.tags or []) and not one.path.startswith("/api/")]
    assert len(operations) == 14
    for operation in operations:
        file = upload(program, as_file([line("1")])).json()  # the one before may have been deleted
        known = {"/v1/files/{id}": file["id"], "/v1/files/{id}/content": file["id"], "/events/{id}": job["id"]}
        id = known.get(operation.path, batch["id"] if "batches" in operation.path else job["id"])
        check(operation, gateway.url, headers, id=id, input_file_id=file["id"])


def check(operation: Any, url: str, headers: dict[str, str], *, id: str, input_file_id: str) -> None:
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
        names_known=st.booleans(),
    )
    def answers(case: Any, names_known: bool) -> None:
        if names_known and "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = id
        if names_known and isinstance(case.body, dict) and "input_file_id" in case.body:
            case.body["input_file_id"] = input_file_id
        case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=PATIENCE_S)

    answers()
