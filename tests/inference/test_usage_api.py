"""What a tenant used, over the API: summed as asked, and its own only."""

from __future__ import annotations

from datetime import date

import pytest

from inference.models import UsageDay
from personas.models import Tenant
from tests.personas.api.conftest import Api, outsider, problem, viewer

__all__ = ["outsider", "viewer"]  # fixtures

USAGE = "tenants/acme/usage"


@pytest.fixture(autouse=True)
def used(acme: Tenant, globex: Tenant) -> None:
    for tenant, day, persona, key, tokens in (
        (acme, 1, "support", "k1", 10),
        (acme, 1, "sales", "k1", 20),
        (acme, 2, "support", "k2", 30),
        (acme, 2, "", "k2", 5),
        (globex, 2, "support", "k3", 999),
    ):
        UsageDay.objects.create(
            tenant=tenant, day=date(2026, 12, day), persona=persona, key=key, requests=1, completion_tokens=tokens
        )


def rows(api: Api, query: str, *names: str) -> list[tuple[object, ...]]:
    found = api.get(f"{USAGE}?{query}").json()["results"]
    return [tuple(row[name] for name in names) for row in found]


def test_it_is_summed_by_what_was_asked_for(viewer: Api) -> None:
    assert rows(viewer, "", "day", "persona", "key", "completion_tokens") == [
        ("2026-12-02", "support", "k2", 30),
        ("2026-12-02", "", "k2", 5),
        ("2026-12-01", "support", "k1", 10),
        ("2026-12-01", "sales", "k1", 20),
    ]
    assert rows(viewer, "group_by=persona&ordering=persona", "persona", "requests", "completion_tokens") == [
        ("", 1, 5),
        ("sales", 1, 20),
        ("support", 2, 40),
    ]
    assert rows(viewer, "group_by=key&ordering=-completion_tokens", "key", "completion_tokens") == [
        ("k2", 35),
        ("k1", 30),
    ]
    assert rows(viewer, "group_by=day", "day", "completion_tokens") == [("2026-12-02", 35), ("2026-12-01", 30)]
    assert "key" not in viewer.get(f"{USAGE}?group_by=day").json()["results"][0]


def test_it_is_filtered(viewer: Api) -> None:
    assert rows(viewer, "group_by=day&persona=support&ordering=day", "completion_tokens") == [(10,), (30,)]
    assert rows(viewer, "group_by=day&persona=", "completion_tokens") == [(5,)]
    assert rows(viewer, "group_by=key&since=2026-12-02", "key") == [("k2",)]
    assert rows(viewer, "group_by=key&until=2026-12-01", "key") == [("k1",)]
    assert rows(viewer, "key=k3", "key") == []


def test_pages_go_on_where_the_last_one_ended(viewer: Api) -> None:
    found, url = [], f"{USAGE}?page_size=1&ordering=-completion_tokens"
    while url:
        page = viewer.get(url).json()
        found += [row["completion_tokens"] for row in page["results"]]
        url = (page["next"] or "").removeprefix("http://testserver/api/v1/")
    assert found == [30, 20, 10, 5]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("group_by=tenant", "group_by"),
        ("group_by=day,day", "group_by"),
        ("group_by=persona&ordering=day", "ordering"),
        ("since=yesterday", "since"),
        ("ordering=tenant", "ordering"),
    ],
)
def test_a_wrong_query_is_named(viewer: Api, query: str, field: str) -> None:
    problem(viewer.get(f"{USAGE}?{query}"), 400, field)


def test_an_outsider_sees_only_their_own(outsider: Api) -> None:
    problem(outsider.get(USAGE), 404)
    found = outsider.get("tenants/globex/usage").json()["results"]
    assert [row["completion_tokens"] for row in found] == [999]
