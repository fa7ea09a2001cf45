"""Signing in and out, in a browser."""

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from personas.models import Persona
from tests.e2e.conftest import OpenPage, scrolls_sideways, violations

pytestmark = pytest.mark.browser


def test_signs_in_with_the_keyboard_and_out_again(open_page: OpenPage, alice: User) -> None:
    page = open_page("/")
    expect(page).to_have_url("/login/?next=/playground/")
    expect(page.get_by_label("User name")).to_be_focused()
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    page.keyboard.type("alice")
    page.keyboard.press("Enter")
    expect(page).to_have_url("/playground/")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_wrong_password_is_explained(open_page: OpenPage, alice: User) -> None:
    page = open_page("/login/")
    page.get_by_label("User name").fill("alice")
    page.get_by_label("Password").fill("bob")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("don’t go together")
    expect(page.get_by_label("User name")).to_have_value("alice")
    expect(page.get_by_label("Password")).to_be_focused()
    assert violations(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 320])
def test_is_accessible_and_fits(open_page: OpenPage, theme: str, width: int) -> None:
    page = open_page("/login/", theme=theme, width=width, height=640)
    assert violations(page) == []
    assert not scrolls_sideways(page)


def test_the_theme_is_kept(open_page: OpenPage, alice: User) -> None:
    page = open_page("/login/", theme="light")
    toggle = page.get_by_role("button", name="Color theme")
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    toggle.click()
    toggle.click()
    expect(toggle).to_have_attribute("aria-label", "Color theme: dark. Switch to system")
    dark = page.evaluate(background)
    assert dark != light
    page.reload()
    assert page.evaluate(background) == dark
    toggle.click()
    page.reload()
    assert page.evaluate(background) == light


@pytest.mark.parametrize("width", [1440, 320])
def test_without_a_tenant_the_page_says_what_to_do(open_page: OpenPage, alice: User, width: int) -> None:
    page = open_page("/playground/", user=alice, width=width)
    expect(page.get_by_role("heading", name="You aren’t a member")).to_be_visible()
    assert violations(page) == []
    assert not scrolls_sideways(page)


def test_a_tenant_without_personas_says_what_they_are(open_page: OpenPage, alice: User, acme: Persona) -> None:
    page = open_page("/playground/", user=alice)
    expect(page.get_by_role("heading", name="Acme has no personas yet")).to_be_visible()
    assert violations(page) == []
