"""What the reconciler says of engines that are away, wrong or failing. Real engines: test_reconcile_engine.py."""

import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import redis
from asgiref.sync import async_to_sync
from django.utils import timezone

from inference import engine_client, reconcile
from inference.models import Engine
from inference.services import Observation, register_engine
from personas import services, vector_files
from personas.models import Tenant
from tests.conftest import BASE_MODEL, MakePersona, MakeVector
from tests.inference.answering import Answer, answering, json_answer

pytestmark = pytest.mark.django_db

STATE = {"boot_id": "boot-1", "model": BASE_MODEL, "hidden_size": 576, "num_layers": 30}


def reconcile_at(url: str, **known: object) -> Observation:
    """One pass over an engine registered at `url`, of which `known` is already known."""
    engine = register_engine(name="local", url=url, api_key="key")
    for name, value in known.items():
        setattr(engine, name, value)
    engine.save()
    observation = async_to_sync(reconcile.reconcile)(engine)
    engine.refresh_from_db()
    assert (engine.status, engine.status_detail) == (observation.status, observation.detail)
    return observation


def engine_with(held: set[str], refuses: dict[str, int] | None = None, **state: object):  # type: ignore[no-untyped-def]
    """An engine that holds `held`, and answers a PUT of a digest in `refuses` with that status."""

    def answer(method: str, path: str) -> Answer:
        digest = path.rpartition("/")[2]
        if path == "/v1/steering":
            return json_answer(200, {**STATE, **state})
        if path == "/v1/steering/vectors":
            return json_answer(200, {"data": [{"digest": each} for each in sorted(held)]})
        if method == "PUT" and refuses and digest in refuses:
            return json_answer(refuses[digest], {"error": {"message": f"secret {digest}"}})
        if method == "PUT":
            held.add(digest)
        elif method == "DELETE":
            held.discard(digest)
        return json_answer(200, {})

    return answering(answer)


@pytest.fixture
def closed_port() -> Iterator[str]:
    """The URL of a port that nobody listens on, nor can: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_an_engine_that_does_not_listen_yet_is_starting(closed_port: str) -> None:
    seen = reconcile_at(closed_port)
    assert seen.status == "starting"
    assert "loading the model" in seen.detail


def test_an_engine_that_never_came_up_is_unreachable(closed_port: str) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    seen = reconcile_at(closed_port, registered_at=long_ago)
    assert (seen.status, seen.detail) == ("unreachable", "connection refused")


def test_an_engine_that_was_up_and_went_away_is_unreachable(closed_port: str) -> None:
    seen = reconcile_at(closed_port, last_seen_at=timezone.now() + timedelta(seconds=1))
    assert seen.status == "unreachable"


def test_an_engine_that_does_not_answer_in_time_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "REQUEST_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seen = reconcile_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert seen.status == "unreachable"
    assert "no answer within" in seen.detail


def test_an_engine_in_service_that_does_not_answer_in_time_is_busy_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "REQUEST_TIMEOUT_S", 0.2)
    now = timezone.now()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        busy = reconcile_at(url, status="ready", last_seen_at=now)
        assert (busy.status, busy.detail) == ("ready", "busy: slow to answer")
        away = reconcile_at(url, status="ready", last_seen_at=now - timedelta(minutes=2))
        assert away.status == "unreachable"


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        (
            json_answer(500, {"error": {"message": "vector 0123 of acme"}}),
            "unreachable",
            "answers with an error (HTTP 500)",
        ),
        (json_answer(401, {}), "incompatible", "refuses the key that it was registered with"),
        (json_answer(404, {}), "incompatible", "has no SteerGuard plugin"),
        ((302, b""), "unreachable", "HTTP 302"),
        ((200, b"<html>"), "incompatible", "not JSON"),
        ((200, b"[" * 100_000), "incompatible", "not JSON"),
        (json_answer(200, []), "incompatible", "without a usable 'boot_id'"),
        (json_answer(200, {**STATE, "hidden_size": "576"}), "incompatible", "without a usable 'hidden_size'"),
        (json_answer(200, {**STATE, "num_layers": True}), "incompatible", "without a usable 'num_layers'"),
        (json_answer(200, STATE), "incompatible", "without a usable 'data'"),
    ],
)
def test_a_wrong_answer_becomes_a_status_that_says_so(answer: Answer, status: str, detail: str) -> None:
    with answering(lambda _method, _path: answer) as url:
        seen = reconcile_at(url)
    assert seen.status == status
    assert detail in seen.detail
    assert "acme" not in seen.detail


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "MAX_ANSWER_BYTES", 1000)
    with answering(lambda _method, _path: (200, b"x" * 2000)) as url:
        assert reconcile_at(url).status == "incompatible"


def test_a_key_that_cannot_be_read_becomes_a_status() -> None:
    seen = reconcile_at("http://127.0.0.1:1", encrypted_api_key="garbage")
    assert seen.status == "unreachable"
    assert "SECRET_KEY" in seen.detail


def test_an_engine_that_fails_in_the_middle_is_not_ready(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    vector = make_vector(acme, "warm")
    make_persona(acme, "support", vector)
    with engine_with(set(), refuses={vector.digest: 503}) as url:
        assert reconcile_at(url).status == "unreachable"


def test_an_engine_is_not_ready_while_vectors_are_still_to_be_sent(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_persona(acme, "support", make_vector(acme, "warm"))
    monkeypatch.setattr(reconcile, "PASS_BUDGET_S", -1)
    with engine_with(set()) as url:
        seen = reconcile_at(url)
        assert (seen.status, seen.detail) == ("starting", "sending 1 vector")
        in_service = reconcile_at(url, status="ready", boot_id="boot-1")
        assert (in_service.status, in_service.detail) == ("ready", "sending 1 vector")
        restarted = reconcile_at(url, status="ready", boot_id="boot-0")
        assert restarted.status == "starting"


def test_a_vector_that_the_engine_refuses_does_not_stop_the_others(
    acme: Tenant, globex: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    good, bad = make_vector(acme, "good", seed=1), make_vector(globex, "bad", seed=2)
    make_persona(acme, "support", good)
    make_persona(globex, "spy", bad)
    held: set[str] = set()
    with engine_with(held, refuses={bad.digest: 400}) as url:
        seen = reconcile_at(url)
    assert held == {good.digest}
    assert (seen.status, seen.detail) == ("ready", "1 vector can't be placed there")


def test_a_vector_whose_file_is_lost_does_not_stop_the_others(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    good, lost = make_vector(acme, "good", seed=1), make_vector(acme, "lost", seed=2)
    make_persona(acme, "support", good, lost)
    vector_files.path_of(lost.digest).unlink()
    held: set[str] = set()
    with engine_with(held) as url:
        seen = reconcile_at(url)
    assert held == {good.digest}
    assert seen.detail == "1 vector can't be placed there"


def test_a_vector_of_another_width_is_not_sent(
    acme: Tenant, globex: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    narrow, fitting = make_vector(acme, "narrow", hidden_size=64), make_vector(globex, "warm")
    make_persona(acme, "support", narrow)
    held: set[str] = set()
    with engine_with(held) as url:
        seen = reconcile_at(url)
        assert seen.status == "incompatible"
        assert "hidden size 576 and 30 layers" in seen.detail
        make_persona(globex, "support", fitting)
        assert reconcile_at(url).status == "ready"
    assert held == {fitting.digest}


def test_vectors_for_other_models_are_not_sent(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    make_persona(acme, "support", make_vector(acme, "other", seed=2, base_model="Llama"))
    held: set[str] = set()
    with engine_with(held) as url:
        assert reconcile_at(url).status == "ready"
    assert not held


def test_vectors_of_drafts_and_of_old_revisions_are_sent(
    acme: Tenant, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    old, drafted = make_vector(acme, "old", seed=1), make_vector(None, "drafted", seed=2)
    persona = make_persona(acme, "support", old)
    services.save_draft(persona=persona, definition={})
    services.publish_persona(persona=persona)
    services.save_draft(persona=persona, definition={"blend": [{"vector": drafted.digest}]})
    held: set[str] = set()
    with engine_with(held) as url:
        reconcile_at(url)
    assert held == {old.digest, drafted.digest}


def test_only_what_we_put_there_is_removed(acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> None:
    vector = make_vector(acme, "warm")
    persona = make_persona(acme, "support", vector)
    not_ours = "f" * 64
    held = {not_ours}
    engine = register_engine(name="local", url="http://unset")
    with engine_with(held) as url:
        Engine.objects.update(url=url)
        engine.refresh_from_db()
        async_to_sync(reconcile.reconcile)(engine)
        assert len(held) == 2
        services.delete_persona(persona=persona)
        services.delete_vector(vector=vector)
        engine.refresh_from_db()
        async_to_sync(reconcile.reconcile)(engine)
    assert held == {not_ours}


def test_a_pass_under_way_is_not_joined_but_followed_by_another(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = register_engine(name="local", url="http://127.0.0.1:1")
    passes: list[int] = []

    async def a_pass(engine: Engine) -> None:
        passes.append(engine.pk)
        if len(passes) == 1:
            reconcile.reconcile_exclusively(engine.pk, on_change=False)  # a tick: nothing to add
            assert len(passes) == 1
            reconcile.reconcile_exclusively(engine.pk, on_change=True)  # a change: once more, afterwards
            reconcile.reconcile_exclusively(engine.pk, on_change=True)
            assert len(passes) == 1

    monkeypatch.setattr(reconcile, "reconcile", a_pass)
    reconcile.reconcile_exclusively(engine.pk, on_change=False)
    assert len(passes) == 2
    assert not valkey.keys("steerguard:reconcile:*")


class TestVectorsThatNoPersonaIsMadeOf:
    """They can be asked for as skills, so engines hold them too: the newest of each name, as far as there is room."""

    ONE_MIB: ClassVar[dict[str, Any]] = {"layers": tuple(range(16)), "hidden_size": 16 * 1024}  # of float32

    def test_are_sent_and_replaced_by_newer_ones_of_their_name(self, acme: Tenant, make_vector: MakeVector) -> None:
        old = make_vector(acme, "pirate", seed=1)
        held: set[str] = set()
        with engine_with(held) as url:
            seen = reconcile_at(url)
            assert (seen.status, held) == ("ready", {old.digest})
            new = make_vector(acme, "pirate", seed=2)
            reconcile_again()
        assert held == {new.digest}

    def test_have_so_much_room_which_owners_share(
        self, acme: Tenant, globex: Tenant, make_vector: MakeVector, make_persona: MakePersona, settings: Any
    ) -> None:
        settings.MAX_SKILL_MIB = 3
        used = make_vector(acme, "used", seed=9, **self.ONE_MIB)
        make_persona(acme, "support", used)
        few = make_vector(globex, "few", seed=8, **self.ONE_MIB)
        many = [make_vector(acme, f"many-{seed}", seed=seed, **self.ONE_MIB) for seed in range(4)]
        wanted = reconcile.wanted_vectors(BASE_MODEL)
        assert wanted.keys() == {used.digest, few.digest, many[2].digest, many[3].digest}
        assert [digest for digest, vector in wanted.items() if vector.in_use] == [used.digest]

    def test_never_take_an_engine_out_of_service(self, acme: Tenant, make_vector: MakeVector) -> None:
        make_vector(acme, "of-another-shape", hidden_size=8)
        with engine_with(set()) as url:
            seen = reconcile_at(url)
        assert (seen.status, seen.detail) == ("ready", "")


def reconcile_again() -> None:
    async_to_sync(reconcile.reconcile)(Engine.objects.get())
