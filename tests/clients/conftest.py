"""Many personas behind the whole application, for the programs that people really ask with.

The stub says which vector each request was steered by, so that an answer that belongs to another persona shows.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from personas import services
from personas.models import Tenant
from tests.conftest import MakePersona, MakeVector
from tests.inference.gateway.conftest import acme_key, gateway, globex_key, register, stub, support
from tests.inference.gateway.stub_engine import DONE, MODEL, USAGE, StubEngine, chunk, says, streams, usage_chunk

__all__ = ["acme_key", "gateway", "globex_key", "register", "stub", "support"]

PERSONAS = 24

Digests = dict[str, str]  # a persona's model name -> its vector's digest


@pytest.fixture
def personas(transactional_db: None, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> Digests:
    """Personas of acme, each steered by a vector of its own."""
    digests = {}
    for number in range(PERSONAS):
        vector = make_vector(acme, f"vector-{number}", seed=number)
        digests[make_persona(acme, f"persona-{number}", vector).model_name] = vector.digest
    return digests


async def tell_vector(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers with the digest of the vector that the request asks for, streamed in pieces or whole."""
    digest = json.loads(body["vllm_xargs"]["steerguard"])["blend"][0]["vector"]
    await asyncio.sleep(0.01)  # so that others come in between
    if body.get("stream"):
        pieces = [chunk(digest[at : at + 8]) for at in range(0, len(digest), 8)]
        return await streams(*pieces, chunk("", "stop"), usage_chunk(), DONE)(stub, request, body)
    return await says(whole({"role": "assistant", "content": digest}))(stub, request, body)


def whole(*messages: dict[str, Any], finish_reason: str = "stop", **choice: Any) -> dict[str, Any]:
    """A chat completion with a choice for each message, as vLLM writes it."""
    choices = [
        {"index": index, "message": message, "finish_reason": finish_reason, **choice}
        for index, message in enumerate(messages)
    ]
    answer = {"id": "chatcmpl-req_1", "object": "chat.completion", "created": 1796072752, "model": MODEL}
    return {**answer, "choices": choices, "usage": USAGE}


@pytest.fixture
def telling(stub: StubEngine, personas: Digests) -> Iterator[Digests]:
    """`personas`, with an engine that answers with their digests."""
    stub.does = tell_vector
    yield personas


@pytest.fixture
def limited_key(transactional_db: None, acme: Tenant) -> str:
    """A key that may ask once a minute."""
    return services.issue_api_key(tenant=acme, name="a slow app", limits={"requests_per_minute": 1})[1]
