"""A key opens its tenant and nothing else, until it expires or is revoked."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from personas.api_keys import digest_of, find_api_key, split_key
from personas.models import ApiKey, Tenant
from personas.services import issue_api_key, revoke_api_key


def test_a_key_finds_its_tenant(acme: Tenant, globex: Tenant) -> None:
    _key, text = issue_api_key(tenant=acme, name="backend")
    issue_api_key(tenant=globex, name="backend")
    found = find_api_key(text)
    assert found is not None
    assert found.tenant == acme


def test_the_text_of_a_key_is_not_stored(acme: Tenant) -> None:
    key, text = issue_api_key(tenant=acme, name="backend")
    secret = text.removeprefix(f"sg_{key.prefix}_")
    assert len(secret) >= 40
    stored = str(ApiKey.objects.values().get())
    assert key.prefix in stored
    assert secret not in stored


def test_a_key_with_one_wrong_character_finds_nothing(acme: Tenant) -> None:
    _key, text = issue_api_key(tenant=acme, name="backend")
    assert find_api_key(text[:-1] + ("a" if text[-1] != "a" else "b")) is None


def test_the_secret_of_one_key_does_not_open_another(acme: Tenant, globex: Tenant) -> None:
    _mine, my_text = issue_api_key(tenant=globex, name="mine")
    theirs, _text = issue_api_key(tenant=acme, name="theirs")
    my_secret = my_text.split("_", 2)[2]
    assert find_api_key(f"sg_{theirs.prefix}_{my_secret}") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sg_",
        "sg_abcd1234",
        "sg_abcd1234_",
        "Bearer x",
        "sg_ABCD1234_" + "x" * 43,
        "sg_abcd1234_" + "x" * 9999,
        "sg_abcd1234_" + "\ud800" * 43,
        "sg_abcd1234_" + "é" * 43,
    ],
)
def test_what_is_no_key_finds_nothing(db: None, text: str) -> None:
    assert split_key(text) is None
    assert find_api_key(text) is None


def test_an_expired_key_finds_nothing(acme: Tenant) -> None:
    key, text = issue_api_key(tenant=acme, name="backend", expires_at=timezone.now() + timedelta(days=1))
    assert find_api_key(text) == key
    ApiKey.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert find_api_key(text) is None


def test_a_revoked_key_finds_nothing(acme: Tenant) -> None:
    key, text = issue_api_key(tenant=acme, name="backend")
    revoke_api_key(key=key)
    assert find_api_key(text) is None


def test_a_digest_depends_on_the_secret_key(settings: Settings) -> None:
    before = digest_of("sg_abcd1234_secret")
    settings.SECRET_KEY = "another"
    assert digest_of("sg_abcd1234_secret") != before
