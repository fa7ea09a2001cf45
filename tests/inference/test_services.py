"""Registering engines, and what becomes of a look at one."""

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from inference import secret_text, services
from inference.models import Engine
from inference.services import Observation
from personas.errors import InvalidField
from personas.models import AuditEvent

pytestmark = pytest.mark.django_db

READY = Observation(
    status=Engine.Status.READY, answered=True, boot_id="b", base_model="SmolLM2", hidden_size=576, num_layers=30
)


def register(**changes: str) -> Engine:
    return services.register_engine(**{"name": "local", "url": "http://127.0.0.1:8100", **changes})  # type: ignore[arg-type]


def test_an_engines_key_is_stored_encrypted() -> None:
    register(api_key="engine-secret")
    stored = str(Engine.objects.values().get())
    assert "engine-secret" not in stored
    assert Engine.objects.get().api_key == "engine-secret"


def test_a_key_stored_under_another_secret_key_is_reported(settings: Settings) -> None:
    engine = register(api_key="engine-secret")
    settings.SECRET_KEY = "another"
    with pytest.raises(secret_text.Unreadable, match="SECRET_KEY"):
        _ = engine.api_key


def test_registering_again_changes_what_is_known(alice: User) -> None:
    register()
    services.record_observation(engine=Engine.objects.get(), observation=READY)
    engine = register(url="http://10.0.0.5:8000/", api_key="k")
    assert Engine.objects.get() == engine
    assert (engine.url, engine.status) == ("http://10.0.0.5:8000", "unknown")
    assert [event.action for event in AuditEvent.objects.all()] == ["engine.changed", "engine.registered"]


def test_what_was_put_on_an_engine_is_remembered_until_its_address_changes() -> None:
    services.note_placed(engine=register(), boot_id="boot-1", digests={"d"})
    assert register(api_key="new").placed_digests == ["d"]
    assert register(url="http://10.0.0.5:8000").placed_digests == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://engine",
        "http://",
        "http://user:pw@engine",
        "http://engine?key=x",
        "http://e:x",
        "http://[::",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidField) as refusal:
        register(url=url)
    assert refusal.value.field == "url"


@pytest.mark.parametrize("url", ["http://engine:8000", "https://gpu-1.example", "http://[::1]:8100"])
def test_the_addresses_that_engines_have_are_accepted(url: str) -> None:
    assert register(url=url).url == url


def test_an_observation_is_stored(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> None:
    engine = register()
    with django_capture_on_commit_callbacks() as announced:
        services.record_observation(engine=engine, observation=READY)
    engine.refresh_from_db()
    assert (engine.status, engine.base_model, engine.hidden_size) == ("ready", "SmolLM2", 576)
    assert engine.last_seen_at is not None
    assert len(announced) == 1


def test_the_same_observation_again_is_announced_to_nobody(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    engine = register()
    services.record_observation(engine=engine, observation=READY)
    with django_capture_on_commit_callbacks() as announced:
        services.record_observation(engine=engine, observation=READY)
    assert announced == []


def test_a_late_observation_does_not_overwrite_a_new_registration() -> None:
    before = register()
    register(url="http://10.0.0.5:8000")
    services.record_observation(engine=before, observation=READY)
    assert Engine.objects.get().status == "unknown"


def test_a_late_observation_does_not_wake_a_disabled_engine() -> None:
    engine = register()
    services.set_engine_enabled(engine=engine, enabled=False)
    services.record_observation(engine=engine, observation=READY)
    assert Engine.objects.get().status_detail == "disabled by the operator"


def test_the_command_takes_the_key_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", "from-the-environment")
    for _ in range(2):
        call_command("register_engine", name="gpu-1", url="http://gpu-1:8000", key_env="GPU_KEY", verbosity=0)
    engine = Engine.objects.get()
    assert (engine.name, engine.api_key) == ("gpu-1", "from-the-environment")


def test_the_command_registers_the_engine_of_the_settings(settings: Settings) -> None:
    settings.ENGINE_KEY = "local-key"
    call_command("register_engine", verbosity=0)
    engine = Engine.objects.get()
    assert (engine.name, engine.url, engine.api_key) == ("local", settings.ENGINE_URL, "local-key")


def test_the_command_names_a_variable_that_is_missing() -> None:
    with pytest.raises(CommandError, match="NO_SUCH_KEY"):
        call_command("register_engine", key_env="NO_SUCH_KEY")


def test_a_removed_engine_is_on_record() -> None:
    services.remove_engine(engine=register())
    assert not Engine.objects.exists()
    event = AuditEvent.objects.first()
    assert event is not None
    assert event.action == "engine.removed"
