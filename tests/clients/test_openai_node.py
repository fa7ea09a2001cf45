"""OpenAI's client for Node, unchanged, with many personas as models (tests/clients/node/ask.js).

npm installs it once, as its lock says, into var/test-node.
"""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from personas.models import Persona
from tests.clients.conftest import Digests, whole
from tests.engine import REPOSITORY
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import MODEL, USAGE, StubEngine, chunk, refuses, says, streams

SOURCE = Path(__file__).parent / "node"
INSTALLED = REPOSITORY / "var" / "test-node"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed (apt install nodejs npm)")


@pytest.fixture(scope="module")
def script() -> Path:
    """ask.js beside the installed client."""
    fingerprint = hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()
    stamp = INSTALLED / "installed.txt"
    if not stamp.exists() or stamp.read_text() != fingerprint:
        INSTALLED.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCE / name, INSTALLED)
        npm = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=INSTALLED,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert npm.returncode == 0, f"npm can't install OpenAI's client: {npm.stderr[-1000:]}"
        stamp.write_text(fingerprint)
    return Path(shutil.copy(SOURCE / "ask.js", INSTALLED))


def ask(script: Path, gateway: Gateway, key: str, *tasks: dict[str, Any]) -> list[dict[str, Any]]:
    node = subprocess.run(
        ["node", str(script), f"{gateway.url}/v1", key, json.dumps(tasks)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        timeout=120,
        check=False,
    )
    assert node.returncode == 0, node.stderr
    answers: list[dict[str, Any]] = json.loads(node.stdout)
    return answers


@pytest.mark.parametrize("how", ["whole", "stream"])
def test_many_personas_at_once_each_answer_as_themselves(
    script: Path, gateway: Gateway, telling: Digests, acme_key: str, how: str
) -> None:
    models = list(telling)
    answers = ask(script, gateway, acme_key, *({"do": how, "model": model} for model in models))
    assert [answer for answer in answers if "error" in answer] == []
    assert [(answer["model"], answer["text"]) for answer in answers] == [(model, telling[model]) for model in models]


def test_all_personas_are_listed(
    script: Path, gateway: Gateway, stub: StubEngine, personas: Digests, acme_key: str
) -> None:
    (answer,) = ask(script, gateway, acme_key, {"do": "models"})
    assert set(answer["names"]) == {*personas, MODEL}


def test_usage_tools_and_several_fields(
    script: Path, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "find_order", "arguments": '{"id": 4711}'}}
    stub.does = says(whole({"role": "assistant", "content": None, "tool_calls": [call]}, finish_reason="tool_calls"))
    tools = [{"type": "function", "function": {"name": "find_order", "parameters": {"type": "object"}}}]
    (answer,) = ask(script, gateway, acme_key, {"do": "whole", "model": "support", "more": {"tools": tools, "seed": 7}})

    assert (stub.last["tools"], stub.last["seed"]) == (tools, 7)
    assert (answer["tools"], answer["finish_reason"], answer["usage"]) == ([call], "tool_calls", USAGE)


def test_usage_at_the_end_of_a_stream(
    script: Path, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
) -> None:
    asked, not_asked = ask(
        script,
        gateway,
        acme_key,
        {"do": "stream", "model": "support", "more": {"stream_options": {"include_usage": True}}},
        {"do": "stream", "model": "support"},
    )
    assert (asked["text"], asked["usage"], not_asked["usage"]) == ("Hello!", USAGE, None)


class TestWhatGoesWrong:
    """Each in the exception that a program for OpenAI expects."""

    def test_keys_and_names(self, script: Path, gateway: Gateway, acme_key: str, support: Persona) -> None:
        (refused,) = ask(script, gateway, "sg_nobody00_" + "x" * 43, {"do": "whole", "model": "support"})
        assert (refused["error"], refused["code"]) == ("AuthenticationError", "invalid_api_key")
        (unknown,) = ask(script, gateway, acme_key, {"do": "stream", "model": "acme/nobody"})
        assert (unknown["error"], unknown["param"]) == ("NotFoundError", "model")

    def test_fields(self, script: Path, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona) -> None:
        stub.does = refuses(400, "temperature must be non-negative", "temperature")
        (answer,) = ask(script, gateway, acme_key, {"do": "whole", "model": "support", "more": {"temperature": -1}})
        assert (answer["error"], answer["param"]) == ("BadRequestError", "temperature")
        assert "non-negative" in answer["message"] and answer["requestID"]

    def test_too_many_requests(
        self, script: Path, gateway: Gateway, stub: StubEngine, limited_key: str, support: Persona
    ) -> None:
        for error in (None, "RateLimitError"):
            (answer,) = ask(script, gateway, limited_key, {"do": "whole", "model": "support"})
            assert answer.get("error") == error

    def test_an_engine_that_fails(
        self, script: Path, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        stub.does = refuses(500, "CUDA error")
        (answer,) = ask(script, gateway, acme_key, {"do": "whole", "model": "support"})
        assert (answer["error"], answer["status"]) == ("InternalServerError", 502)

    def test_a_stream_that_breaks_off(
        self, script: Path, gateway: Gateway, stub: StubEngine, acme_key: str, support: Persona
    ) -> None:
        stub.does = streams(chunk("Hel"), chunk("lo"), then="cut")
        (answer,) = ask(script, gateway, acme_key, {"do": "stream", "model": "support"})
        assert (answer["error"], answer["told"]) == ("APIError", "Hello")
        assert "broke off" in answer["message"]
