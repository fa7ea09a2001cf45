"""Guessing a password gets slow after a few tries, for that name from that address only."""

from collections.abc import Iterator

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from personas import changes
from personas.log_in_limit import MAX_FAILURES, WINDOW_S

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _counts_end_with_the_test(valkey: redis.Redis) -> Iterator[None]:
    yield
    valkey.flushall()


def try_password(client: Client, password: str, name: str = "alice", path: str = "/login/", **extra: str) -> int:
    response = client.post(path, {"username": name, "password": password}, **extra)  # type: ignore[arg-type]
    return response.status_code


def fail_often(client: Client, path: str = "/login/") -> None:
    for _ in range(MAX_FAILURES):
        assert try_password(client, "wrong", path=path) == 200


@pytest.mark.parametrize("path", ["/login/", "/admin/login/"])
def test_the_eleventh_failure_in_a_minute_is_not_looked_at(
    path: str, client: Client, alice: User, valkey: redis.Redis
) -> None:
    fail_often(client, path)
    for form in ("/login/", "/admin/login/"):
        response = client.post(form, {"username": "alice", "password": "alice", "next": "/playground/?persona=a/b"})
        assert response.status_code == 429
        assert 0 < int(response.headers["Retry-After"]) <= WINDOW_S
        assert f"Wait {response.headers['Retry-After']} second" in response.content.decode()
        assert 'value="/playground/?persona=a/b"' in response.content.decode()
    assert "_auth_user_id" not in client.session
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("spelling", [" alice", "alice\t", "ａlice", "ALICE"])
def test_another_spelling_of_the_name_gives_no_further_tries(
    spelling: str, client: Client, alice: User, valkey: redis.Redis
) -> None:
    fail_often(client)
    assert try_password(client, "alice", spelling) == 429


def test_other_people_and_other_addresses_are_not_held_up(
    client: Client, alice: User, bob: User, valkey: redis.Redis
) -> None:
    fail_often(client)
    assert try_password(client, "alice", REMOTE_ADDR="192.0.2.7") == 302
    assert try_password(Client(), "bob", "bob") == 302


def test_when_the_minute_is_over_tries_count_anew(client: Client, alice: User, valkey: redis.Redis) -> None:
    fail_often(client)
    (key,) = valkey.keys("steerguard:log-ins:*")
    assert 0 < valkey.ttl(key) <= WINDOW_S
    valkey.delete(key)  # what Valkey does by itself then
    assert try_password(client, "alice") == 302


def test_a_right_password_forgets_the_wrong_ones(client: Client, alice: User, valkey: redis.Redis) -> None:
    for _ in range(MAX_FAILURES - 1):
        assert try_password(client, "wrong") == 200
    assert try_password(client, "alice") == 302
    assert valkey.keys("steerguard:log-ins:*") == []


def test_being_signed_in_as_another_doesnt_forget_them(
    client: Client, alice: User, charlie_client: Client, valkey: redis.Redis
) -> None:
    for _ in range(MAX_FAILURES - 1):
        assert try_password(client, "wrong") == 200
    assert try_password(charlie_client, "wrong") == 302, "who is signed in is sent on, whatever the password"
    assert try_password(client, "wrong") == 429


def test_without_valkey_people_still_get_in(client: Client, alice: User, settings: Settings) -> None:
    settings.REDIS_URL = "unix:///nonexistent/valkey.sock"
    changes.valkey.cache_clear()
    try:
        fail_often(client)
        assert try_password(client, "wrong") == 200
        assert try_password(client, "alice") == 302
    finally:
        changes.valkey.cache_clear()
