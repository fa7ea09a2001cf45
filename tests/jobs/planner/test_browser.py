"""The planner in a browser: it follows the inputs, and is read by everybody."""

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from tests.e2e.conftest import (
    OpenPage,
    _orm_beside_playwrights_loop,
    browser,
    open_page,
    scrolls_sideways,
    violations,
)
from tests.inference.gateway.conftest import gateway

__all__ = ["_orm_beside_playwrights_loop", "browser", "gateway", "open_page"]  # fixtures

pytestmark = pytest.mark.browser


def test_the_plan_follows_the_inputs_and_the_address_follows_the_plan(open_page: OpenPage, alice: User) -> None:
    page = open_page("/planner/", user=alice)
    rank = page.get_by_label("Rank")
    rank.fill("32")
    expect(page.locator("#plan")).to_contain_text("54.5 MB each")
    expect(page).to_have_url("/planner/?rank=32")
    expect(rank).to_be_focused()
    rank.fill("none")
    expect(page.locator("#error-rank")).to_have_text("Expected a whole number, found 'none'.")
    expect(rank).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#plan")).to_contain_text("No plan with these inputs")
    assert violations(page) == []
    rank.fill("16")
    expect(page.locator("#plan")).to_contain_text("27.3 MB each")
    expect(page.locator("#error-rank")).to_be_empty()
    expect(page).to_have_url("/planner/")
    page.get_by_label("Model", exact=True).select_option("smollm2-135m")
    expect(page).to_have_url(re.compile(r"\?model=smollm2-135m$"))
    page.reload()
    expect(page.locator("#plan")).to_contain_text("0.13 billion weights")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_is_accessible_and_fits(open_page: OpenPage, alice: User, theme: str, width: int) -> None:
    page = open_page("/planner/", user=alice, theme=theme, width=width)
    for more in page.locator("details").all():
        more.locator("summary").click()
    assert violations(page) == []
    assert not scrolls_sideways(page)
