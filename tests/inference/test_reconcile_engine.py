"""The reconciler against a real vLLM: what personas are made of is there, and stays there through a restart."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import requests
from asgiref.sync import async_to_sync
from celery.contrib.testing.worker import start_worker

from config.celery import app as celery_app
from inference import reconcile, tasks
from inference.models import Engine
from inference.services import Observation, register_engine
from personas import services
from personas.models import SteeringVector, Tenant
from tests.conftest import MakePersona, MakeVector
from tests.engine import TestEngine
from tests.waiting import eventually

pytestmark = [pytest.mark.engine, pytest.mark.django_db]


@pytest.fixture
def registered(engine: TestEngine, db: None) -> Iterator[Engine]:
    """The real engine, registered, and left without vectors afterwards."""
    yield register_engine(name="local", url=engine.url, api_key=engine.key)
    for digest in digests_on(engine):
        requests.delete(f"{engine.url}/v1/steering/vectors/{digest}", headers=engine.headers, timeout=30)


def digests_on(engine: TestEngine) -> set[str]:
    answer = requests.get(f"{engine.url}/v1/steering/vectors", headers=engine.headers, timeout=30)
    return {vector["digest"] for vector in answer.json()["data"]}


def a_pass(engine: Engine) -> Observation:
    engine.refresh_from_db()
    return async_to_sync(reconcile.reconcile)(engine)


def test_an_engine_becomes_ready_with_the_vectors_of_all_tenants(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    globex: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
) -> None:
    warm, formal = make_vector(acme, "warm", seed=1), make_vector(None, "formal", seed=2, layers=(4, 18))
    make_persona(acme, "support", warm)
    make_persona(globex, "desk", formal)
    seen = a_pass(registered)
    assert (seen.status, seen.detail) == ("ready", "")
    registered.refresh_from_db()
    assert (registered.base_model, registered.hidden_size, registered.num_layers) == (engine.model, 576, 30)
    assert digests_on(engine) == {warm.digest, formal.digest}


def test_a_vector_that_nobody_wants_any_more_is_removed(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
) -> None:
    vector = make_vector(acme, "warm")
    persona = make_persona(acme, "support", vector)
    a_pass(registered)
    services.delete_persona(persona=persona)
    services.delete_vector(vector=vector)
    a_pass(registered)
    assert digests_on(engine) == set()


def test_a_vector_in_use_stays_until_the_request_is_done(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
) -> None:
    vector = make_vector(acme, "warm")
    persona = make_persona(acme, "support", vector)
    a_pass(registered)
    services.delete_persona(persona=persona)
    services.delete_vector(vector=vector)
    with long_answer(engine, vector):
        assert a_pass(registered).status == "ready"
        assert digests_on(engine) == {vector.digest}
    until_unused(engine, vector)
    a_pass(registered)
    assert digests_on(engine) == set()


@contextmanager
def long_answer(engine: TestEngine, vector: SteeringVector) -> Iterator[None]:
    """A stream that uses the vector, begun when the block begins and given up at its end."""
    blend = {"blend": [{"vector": vector.digest, "alpha": 0.1, "positions": "all"}]}
    body: dict[str, Any] = {
        "model": engine.model,
        "prompt": "Once",
        "max_tokens": 2000,
        "ignore_eos": True,
        "stream": True,
        "vllm_xargs": {"steerguard": json.dumps(blend)},
    }
    url = f"{engine.url}/v1/completions"
    with requests.post(url, headers=engine.headers, json=body, stream=True, timeout=60) as response:
        response.raise_for_status()
        lines = response.iter_lines()  # has a name because the connection closes with it
        next(lines)
        yield


def until_unused(engine: TestEngine, vector: SteeringVector) -> None:
    url = f"{engine.url}/v1/steering/vectors/{vector.digest}"
    eventually(lambda: not requests.get(url, headers=engine.headers, timeout=30).json()["in_use"])


def test_a_wrong_key_is_reported(engine: TestEngine, registered: Engine) -> None:
    wrong = register_engine(name="local", url=engine.url, api_key="wrong")
    seen = a_pass(wrong)
    assert seen.status == "incompatible"
    assert "refuses the key" in seen.detail


def test_an_engine_with_another_model_is_not_used(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
) -> None:
    make_persona(acme, "support", make_vector(acme, "warm"))
    other = register_engine(name="local", url=engine.url, api_key=engine.key, expected_base_model="Llama-3-8B")
    seen = a_pass(other)
    assert seen.status == "incompatible"
    assert seen.detail == f"serves {engine.model}, but was registered to serve Llama-3-8B"
    assert digests_on(engine) == set()


@pytest.mark.django_db(transaction=True)
def test_publishing_brings_a_vector_to_the_engine_at_once(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
    valkey: redis.Redis,
) -> None:
    """Through the change channel, Celery and Valkey, with no periodic tick."""
    with start_worker(celery_app, pool="solo", perform_ping_check=False, loglevel="WARNING"):
        vector = make_vector(acme, "warm")
        make_persona(acme, "support", vector)
        eventually(lambda: digests_on(engine) == {vector.digest})
    registered.refresh_from_db()
    assert registered.status == "ready"


def test_the_periodic_task_covers_enabled_engines_only(registered: Engine, valkey: redis.Redis) -> None:
    disabled = register_engine(name="off", url="http://127.0.0.1:1")
    Engine.objects.filter(pk=disabled.pk).update(enabled=False)
    tasks.reconcile_engines()
    assert valkey.llen("celery") == 1
    tasks.reconcile_engine(registered.pk)
    registered.refresh_from_db()
    assert registered.status == "ready"


@pytest.mark.slow
def test_a_restarted_engine_gets_its_vectors_again(
    engine: TestEngine,
    registered: Engine,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
) -> None:
    vector = make_vector(acme, "warm")
    make_persona(acme, "support", vector)
    a_pass(registered)
    registered.refresh_from_db()
    first_boot = registered.boot_id
    engine.stop(kill=True)
    away = a_pass(registered)
    assert (away.status, away.detail) == ("unreachable", "connection refused")
    engine.start()
    assert digests_on(engine) == set()
    assert a_pass(registered).status == "ready"
    registered.refresh_from_db()
    assert registered.boot_id != first_boot
    assert digests_on(engine) == {vector.digest}
