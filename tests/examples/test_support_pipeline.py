"""The example of docs/examples, as a person runs it, against a stub engine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web
from django.conf import settings
from django.contrib.auth.models import User

from personas import services
from tests.conftest import MakePersona, MakeVector
from tests.inference.gateway.conftest import Gateway, gateway, register, stub
from tests.inference.gateway.stub_engine import StubEngine, says

__all__ = ["gateway", "register", "stub"]  # fixtures

EXAMPLE = Path(settings.BASE_DIR) / "docs" / "examples" / "support_pipeline.py"
FIELDS = {"product": "app", "problem": "It crashes.", "urgent": True}


async def reads_then_replies(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    content = json.dumps(FIELDS) if body.get("response_format") else "We are so sorry."
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return await says(answer)(stub, request, body)


def test_a_ticket_is_read_by_one_persona_and_answered_by_another(
    gateway: Gateway, stub: StubEngine, charlie: User, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    northbank = services.create_tenant(slug="northbank", name="Northbank", owner=charlie)
    simple, empathetic = make_vector(northbank, "simple", seed=1), make_vector(northbank, "empathetic", seed=2)
    make_persona(northbank, "plain-words", simple)
    make_persona(northbank, "claims", empathetic)
    _, key = services.issue_api_key(tenant=northbank, name="pipeline")
    stub.does = reads_then_replies

    ran = subprocess.run(
        [sys.executable, str(EXAMPLE), "The app crashes."],
        env={**os.environ, "SG_URL": f"{gateway.url}/v1", "SG_KEY": key},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )

    fields, _, reply = ran.stdout.rpartition("}\n")
    assert json.loads(fields + "}") == FIELDS
    assert reply == "We are so sorry.\n"
    steered_by = [json.loads(asked["vllm_xargs"]["steerguard"])["blend"][0]["vector"] for asked in stub.requests]
    assert steered_by == [simple.digest, empathetic.digest]
    assert "It crashes." in stub.last["messages"][-1]["content"]
