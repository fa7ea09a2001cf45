"""What follows at once from a change: work in the queue, news on the open pages."""

import json

import pytest
import redis
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import connections

from config.celery import app
from inference import status_feed, tasks
from inference.models import Engine
from inference.services import Observation, record_observation, register_engine
from personas import services
from personas.models import Tenant
from tests.conftest import MakePersona

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = "celery"


def queued_tasks(valkey: redis.Redis) -> list[str]:
    messages = valkey.lrange(QUEUE, 0, -1)
    assert isinstance(messages, list)
    return [json.loads(message)["headers"]["task"] for message in messages]


def test_publishing_a_persona_queues_a_pass_over_the_engines(
    acme: Tenant, make_persona: MakePersona, valkey: redis.Redis
) -> None:
    persona = make_persona(acme, "support")
    valkey.flushall()
    services.publish_persona(persona=persona)
    assert queued_tasks(valkey) == ["inference.tasks.reconcile_engines"]


def test_registering_an_engine_queues_a_pass(db: None, valkey: redis.Redis) -> None:
    register_engine(name="local", url="http://127.0.0.1:1")
    assert queued_tasks(valkey) == ["inference.tasks.reconcile_engines"]


def test_a_new_status_queues_nothing(db: None, valkey: redis.Redis) -> None:
    engine = register_engine(name="local", url="http://127.0.0.1:1")
    valkey.flushall()
    record_observation(engine=engine, observation=Observation(status=Engine.Status.UNREACHABLE))
    assert queued_tasks(valkey) == []


def test_a_key_queues_nothing(acme: Tenant, valkey: redis.Redis) -> None:
    services.issue_api_key(tenant=acme, name="backend")
    assert queued_tasks(valkey) == []


async def test_open_pages_hear_of_a_new_status(db: None, valkey: redis.Redis) -> None:
    engine = await sync_to_async(register_engine)(name="local", url="http://127.0.0.1:1")
    layer = get_channel_layer()
    assert layer is not None
    page = await layer.new_channel()
    await layer.group_add(status_feed.GROUP, page)
    observation = Observation(status=Engine.Status.STARTING, detail="loading the model")
    await sync_to_async(record_observation)(engine=engine, observation=observation)
    await sync_to_async(connections.close_all)()  # of that thread, which no request ends
    news = await layer.receive(page)
    assert news == {
        "type": "engines.changed",
        "engines": [{"name": "local", "status": "starting", "detail": "loading the model"}],
    }
    await layer.flush()


def test_every_second_only_engines_that_start_are_looked_at(db: None, valkey: redis.Redis) -> None:
    for name in ("starting", "ready", "disabled"):
        register_engine(name=name, url="http://127.0.0.1:1")
    Engine.objects.filter(name="ready").update(status=Engine.Status.READY)
    Engine.objects.filter(name="disabled").update(enabled=False)
    valkey.flushall()
    tasks.reconcile_engines(only_starting=True)
    assert len(queued_tasks(valkey)) == 1
    valkey.flushall()
    tasks.reconcile_engines()
    assert queued_tasks(valkey) == ["inference.tasks.reconcile_engine"] * 2


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()  # as a worker does when it starts
    for entry in settings.CELERY_BEAT_SCHEDULE.values():
        assert entry["task"] in app.tasks
