"""The planner's page: plans by address, without JavaScript too."""

import re

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db


def get(client: Client, query: str = "") -> str:
    response = client.get(f"/planner/{query}")
    assert response.status_code == 200
    return response.content.decode()


def test_needs_a_sign_in(client: Client) -> None:
    response = client.get("/planner/?rank=8")
    assert response.headers["Location"] == "/login/?next=/planner/%3Frank%3D8"


def test_only_reads(alice_client: Client) -> None:
    assert alice_client.post("/planner/").status_code == 405


def test_is_there_without_a_slash_and_in_the_menu(alice_client: Client) -> None:
    assert alice_client.get("/planner").headers["Location"] == "/planner/"
    assert re.search(r'<a class="nav__link" href="/planner/" aria-current="page">', get(alice_client))


def test_plans_with_defaults(alice_client: Client) -> None:
    page = get(alice_client)
    assert "27.3 MB each, 1.36 GB all" in page
    assert '<th scope="row">Left for KV cache</th>' in page


def test_the_address_is_the_plan(alice_client: Client) -> None:
    page = get(alice_client, "?model=qwen2.5-7b&gpu_gib=24&rank=8&modules=all&restricted_slots=1")
    assert "40.4 MB each" in page
    assert '<option value="qwen2.5-7b" selected>' in page
    assert re.search(r'name="rank" id="in-rank" value="8"', page)
    assert re.search(r'name="restricted_slots" value="1" data-default="" id="in-restricted_slots" checked', page)


def test_errors_stand_at_their_fields(alice_client: Client) -> None:
    page = get(alice_client, "?rank=many&personas=few&bus=isa")
    assert "No plan with these inputs" in page
    assert '<table class="figures figures--plan">' not in page
    for name in ("rank", "personas", "bus"):
        assert re.search(rf'id="error-{name}">Expected [^<]', page), name
    assert page.count('aria-invalid="true"') == 3
    assert 'value="many"' in page


def test_a_page_reads_no_files(alice_client: Client, tmp_path: object) -> None:
    page = get(alice_client, f"?model={tmp_path}")
    assert re.search(r'id="error-model">Expected llama-3\.1-8b or', page)


def test_nothing_that_is_asked_can_run(alice_client: Client) -> None:
    page = get(alice_client, "?rank=%3Cscript%3Ealert(1)%3C/script%3E&nobody=%22%3E")
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    "query", ["?rank=%00", "?rank=" + "9" * 500, "?rank=1&rank=2", "?=&&", "?personas=%F0%9F%98%80"]
)
def test_odd_queries_get_a_page(alice_client: Client, query: str) -> None:
    get(alice_client, query)


def test_shows_what_was_published_and_what_does_not_add_up(alice_client: Client) -> None:
    page = get(alice_client)
    assert "arXiv 2311.03285" in page
    assert "does not add up" in page
