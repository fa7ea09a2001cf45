"""The pages, as HTML: who sees what, and that nothing in them can run."""

import json
import re

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client

from personas import services
from personas.models import Persona, Tenant
from tests.conftest import MakePersona, MakeVector


def page_data(html: str) -> dict[str, object]:
    """The JSON that the playground's scripts read."""
    found = re.search(r'<script id="page-data" type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def personas_on(client: Client) -> list[dict[str, object]]:
    return page_data(client.get("/playground/").content.decode())["personas"]  # type: ignore[return-value]


def test_the_front_door_is_the_playground(alice_client: Client) -> None:
    response = alice_client.get("/", follow=True)
    assert response.redirect_chain == [("/playground/", 302)]


@pytest.mark.django_db
def test_pages_need_a_sign_in(client: Client) -> None:
    response = client.get("/playground/?persona=acme/support")
    assert response.headers["Location"] == "/login/?next=/playground/%3Fpersona%3Dacme/support"


def test_shows_what_is_published(
    acme: Tenant, alice_client: Client, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    vector = make_vector(acme, "warm", layers=(10, 14))
    persona = make_persona(acme, "support", vector, alpha=1.5, sampling={"max_tokens": 40})
    services.save_draft(persona=persona, definition={"system_prompt": "Not yet."})
    (card,) = personas_on(alice_client)
    assert card["model"] == "acme/support"
    assert card["revision"] == 1
    assert card["system_prompt"] == ""
    assert card["max_tokens"] == 40
    assert card["base_model"] == vector.base_model
    assert card["blend"] == [
        {"vector": vector.digest, "skill": "warm", "alpha": 1.5, "positions": "all", "layers": [10, 14]}
    ]


def test_a_draft_is_shown_as_one(acme: Tenant, alice_client: Client) -> None:
    services.create_persona(tenant=acme, slug="idea", name="Idea", definition={"system_prompt": "Hi."})
    (card,) = personas_on(alice_client)
    assert card["revision"] is None
    assert card["system_prompt"] == "Hi."
    assert "<em>draft</em>" in alice_client.get("/playground/").content.decode()


def test_what_a_description_says_to_try_is_suggested_first(acme: Tenant, alice_client: Client) -> None:
    services.create_persona(
        tenant=acme, slug="a", name="A", description="A pirate. Try: “Tell me about your ship.”", definition={}
    )
    services.create_persona(tenant=acme, slug="b", name="B", description="Try: harder", definition={})
    pirate, other = personas_on(alice_client)
    assert pirate["description"] == "A pirate."
    assert pirate["samples"][0] == "Tell me about your ship."  # type: ignore[index]
    assert other["description"] == "Try: harder"
    assert pirate["samples"][1:] == other["samples"]  # type: ignore[index]


def test_an_outsider_sees_nothing_of_it(
    acme: Tenant, globex: Tenant, charlie_client: Client, make_persona: MakePersona
) -> None:
    make_persona(acme, "support")
    make_persona(globex, "teller")
    assert [card["model"] for card in personas_on(charlie_client)] == ["globex/teller"]
    assert "acme" not in charlie_client.get("/playground/?persona=acme/support").content.decode()


def test_being_staff_shows_no_other_peoples_personas(acme: Tenant, client: Client, make_persona: MakePersona) -> None:
    make_persona(acme, "support")
    client.force_login(User.objects.create_superuser("operator"))
    html = client.get("/playground/").content.decode()
    assert "acme" not in html
    assert "/admin/personas/membership/add/" in html


def test_names_and_prompts_are_text(acme: Tenant, alice_client: Client) -> None:
    attack = "</script><script>alert(1)</script>"
    persona = services.create_persona(
        tenant=acme, slug="evil", name=attack, description=attack, definition={"system_prompt": attack}
    )
    services.publish_persona(persona=persona)
    assert "<script>alert" not in alice_client.get("/playground/").content.decode()
    (card,) = personas_on(alice_client)
    assert card["name"] == card["system_prompt"] == attack


@pytest.mark.parametrize("path", ["/login/", "/playground/"])
def test_pages_obey_their_own_security_policy(
    path: str, acme: Tenant, client: Client, make_persona: MakePersona
) -> None:
    make_persona(acme, "support")
    if path != "/login/":
        client.force_login(User.objects.get(username="alice"))
    response = client.get(path)
    html = response.content.decode()
    assert "'unsafe" not in response.headers["Content-Security-Policy"]
    assert re.findall(r"<style|<[^>]+\s(?:style|on\w+)=", html) == []
    assert [tag for tag in re.findall(r"<script[^>]*>", html) if "src=" not in tag and "json" not in tag] == []


@pytest.mark.parametrize(("cookie", "expected"), [("dark", 'data-theme="dark"'), ("light", 'data-theme="light"')])
@pytest.mark.django_db
def test_the_chosen_theme_is_in_the_page(cookie: str, expected: str, client: Client) -> None:
    client.cookies["theme"] = cookie
    assert f'<html lang="en" {expected}>' in client.get("/login/").content.decode()


@pytest.mark.parametrize("cookie", ["", "system", '"><script>'])
@pytest.mark.django_db
def test_any_other_theme_is_the_systems(cookie: str, client: Client) -> None:
    client.cookies["theme"] = cookie
    assert '<html lang="en">' in client.get("/login/").content.decode()


def test_fifty_personas_take_few_queries(
    acme: Tenant,
    alice_client: Client,
    make_vector: MakeVector,
    make_persona: MakePersona,
    django_assert_max_num_queries: object,
) -> None:
    vector = make_vector(acme, "warm")
    for number in range(50):
        make_persona(acme, f"desk-{number}", vector)
    with django_assert_max_num_queries(8):  # type: ignore[operator]
        assert len(personas_on(alice_client)) == 50
    assert Persona.objects.count() == 50


@pytest.mark.django_db
def test_an_unknown_address_says_so(client: Client) -> None:
    response = client.get("/nowhere/")
    assert response.status_code == 404
    assert "There is nothing here" in response.content.decode()


@pytest.mark.django_db
def test_an_expired_form_says_so() -> None:
    response = Client(enforce_csrf_checks=True).post("/login/", {"username": "alice", "password": "alice"})
    assert response.status_code == 403
    assert "This form has expired" in response.content.decode()


def test_a_failure_has_a_page_that_needs_nothing() -> None:
    assert "Something went wrong on our side" in render_to_string("500.html")
