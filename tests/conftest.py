"""What every test gets: Valkey, and two tenants with three people.

alice owns acme and bob edits there; charlie owns globex, and to acme is an outsider. Every endpoint has a test in
which charlie asks for something of acme's and gets what he would get if it didn't exist.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import Client, TransactionTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from inference import engine_client
from inference.gateway import fleet, limits, usage
from personas import services
from personas.models import Persona, SteeringVector, Tenant
from steerguard.vectors import SteeringVector as VectorContent
from tests.engine import demo_model, engine
from tests.server import server
from tests.valkey import running_valkey
from tests.waiting import PATIENCE_S

__all__ = ["demo_model", "engine", "server"]  # fixtures

# How long an example takes says how busy the machine is, and nothing about the code. The examples are the same each
# time, so that a run tells what was changed since the last one; `--hypothesis-profile=explore` looks for new ones.
_any_machine = hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.register_profile("any-machine", _any_machine, derandomize=True)
hypothesis_settings.register_profile("explore", _any_machine, max_examples=1000)
hypothesis_settings.load_profile("any-machine")

BASE_MODEL = "SmolLM2-135M-Instruct"
HIDDEN_SIZE = 576

MakeVector = Callable[..., SteeringVector]
MakePersona = Callable[..., Persona]


@pytest.fixture(scope="session", autouse=True)
def _valkey_server() -> Iterator[redis.Redis]:
    """One Valkey for the whole run, or for each of the processes that share it."""
    data_dir = Path(settings.DATA_DIR)
    with running_valkey(data_dir / "valkey.sock") as client:
        yield client
    shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _patience() -> Iterator[None]:
    """Nothing of ours is away in a test unless the test says so: it may only be slow, on a machine that is busy."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (engine_client, "CONNECT_TIMEOUT_S"),
            (engine_client, "REQUEST_TIMEOUT_S"),
            (fleet, "CONNECT_TIMEOUT_S"),
            (limits, "CONNECT_TIMEOUT_S"),
            (limits, "ANSWER_TIMEOUT_S"),
            (limits, "CLOSE_TIMEOUT_S"),
            (usage, "TIMEOUT_S"),
        ):
            patch.setattr(module, name, PATIENCE_S)
        yield


@pytest.fixture(scope="session", autouse=True)
def _emptied_quickly() -> Iterator[None]:
    """After a test with transactions of its own, rows go, and what migrations made of the models stays.

    Django would truncate all tables and make their content types and permissions again, in a tenth of a second or more.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _empty_tables)
        yield


def _empty_tables(test_case: TransactionTestCase) -> None:
    for alias in test_case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        connection = connections[alias]
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        # All foreign keys are looked at when the transaction ends, so the order is no matter.
        with transaction.atomic(using=alias), connection.cursor() as cursor:
            for table in set(tables) - {"django_content_type", "auth_permission"}:
                cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")


@pytest.fixture
def valkey(_valkey_server: redis.Redis) -> redis.Redis:
    """The run's Valkey, empty."""
    _valkey_server.flushall()
    return _valkey_server


@pytest.fixture
def alice(db: None) -> User:
    """Owner of acme."""
    return User.objects.create_user("alice", "alice@acme.example", "alice")


@pytest.fixture
def bob(db: None) -> User:
    """Editor at acme."""
    return User.objects.create_user("bob", "bob@acme.example", "bob")


@pytest.fixture
def charlie(db: None) -> User:
    """Owner of globex; to acme, an outsider."""
    return User.objects.create_user("charlie", "charlie@globex.example", "charlie")


@pytest.fixture
def acme(alice: User, bob: User) -> Tenant:
    """alice's tenant, in which bob is an editor."""
    tenant = services.create_tenant(slug="acme", name="Acme", owner=alice)
    services.add_member(tenant=tenant, user=bob, role="editor")
    return tenant


@pytest.fixture
def globex(charlie: User) -> Tenant:
    """charlie's tenant."""
    return services.create_tenant(slug="globex", name="Globex", owner=charlie)


@pytest.fixture
def alice_client(client: Client, alice: User) -> Client:
    """A browser in which alice is signed in."""
    client.force_login(alice)
    return client


@pytest.fixture
def charlie_client(charlie: User) -> Client:
    """A browser in which charlie is signed in."""
    client = Client()
    client.force_login(charlie)
    return client


@pytest.fixture
def make_vector(db: None) -> MakeVector:
    """Stores a vector: `make_vector(acme, "warm")`, or `make_vector(None, …)` for a shared one.

    `seed` makes its numbers, so that two seeds give two digests; `layers` are 0-based blocks.
    """

    def make(
        tenant: Tenant | None,
        name: str,
        *,
        seed: int = 0,
        layers: tuple[int, ...] = (10,),
        base_model: str = BASE_MODEL,
        hidden_size: int = HIDDEN_SIZE,
    ) -> SteeringVector:
        content = random_vector(name, seed=seed, layers=layers, base_model=base_model, hidden_size=hidden_size)
        return services.store_vector(tenant=tenant, vector=content)

    return make


@pytest.fixture
def make_persona(db: None) -> MakePersona:
    """Creates a published persona: `make_persona(acme, "support", vector, alpha=2.0, system_prompt="Hi")`."""

    def make(tenant: Tenant, slug: str, *vectors: SteeringVector, alpha: float = 1.0, **definition: object) -> Persona:
        blend = [{"vector": vector.digest, "alpha": alpha} for vector in vectors]
        persona = services.create_persona(
            tenant=tenant, slug=slug, name=slug.title(), definition={"blend": blend, **definition}
        )
        services.publish_persona(persona=persona)
        persona.refresh_from_db()
        return persona

    return make


def random_vector(
    name: str,
    *,
    seed: int = 0,
    layers: tuple[int, ...] = (10,),
    base_model: str = BASE_MODEL,
    hidden_size: int = HIDDEN_SIZE,
) -> VectorContent:
    """A vector of random numbers, the same ones for the same `seed`."""
    random = np.random.default_rng(seed)
    rows = {layer: random.normal(size=hidden_size).astype(np.float32) for layer in layers}
    return VectorContent(layers=rows, hidden_size=hidden_size, base_model=base_model, name=name)
