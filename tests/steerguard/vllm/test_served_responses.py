"""The Responses API says of steering what completions say: which blend, on how many tokens, how much."""

import json
from typing import Any

import pytest
import requests

from steerguard.blend import parse_blend
from tests.engine import TestEngine
from tests.steerguard.vllm.over_http import SMALL, component

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def ask(server: TestEngine, blend: list[dict[str, Any]] | None, *, stream: bool) -> dict[str, Any]:
    """The usage of a response of four tokens."""
    body: dict[str, Any] = {"model": server.model, "input": "Hello", "max_output_tokens": 4, "stream": stream}
    if blend is not None:
        body["vllm_xargs"] = {"steerguard": json.dumps({"blend": blend})}
    response = requests.post(f"{server.url}/v1/responses", json=body, headers=server.headers)
    assert response.status_code == 200, response.text
    if not stream:
        usage: dict[str, Any] = response.json()["usage"]
        return usage
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    usage = events[-1]["response"]["usage"]
    return usage


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_usage_of_a_response_says_how_many_tokens_were_steered(server: TestEngine, stream: bool) -> None:
    blend = [component(SMALL, 0.1)]
    usage = ask(server, blend, stream=stream)
    steering = usage["steering"]
    assert steering["blend"] == parse_blend({"blend": blend}).digest
    assert (steering["prompt_tokens"], steering["response_tokens"]) == (usage["input_tokens"] - 1, 4)
    assert steering["dose"] > 0
    assert "steering" not in ask(server, None, stream=stream)
