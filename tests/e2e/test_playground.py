"""The playground in a browser: in front of an engine that does as it is told, and at the end of a real one."""

import json
import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Page, expect

from inference import status_feed
from inference.models import Engine
from inference.reconcile import reconcile_exclusively
from personas import services
from personas.models import Persona, Tenant
from tests.conftest import MakePersona, MakeVector
from tests.e2e.conftest import OpenPage, in_thread, scrolls_sideways, violations
from tests.engine import TestEngine
from tests.inference.gateway.conftest import RegisterEngine
from tests.inference.gateway.stub_engine import DONE, StubEngine, chunk, refuses, streams, usage_chunk
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.browser


@pytest.fixture
def personas(transactional_db: None, acme: Tenant, make_vector: MakeVector, make_persona: MakePersona) -> list[Persona]:
    """acme's two: one that steers, one that only has a system prompt."""
    warm = make_vector(acme, "warm", layers=(10, 14))
    return [
        make_persona(acme, "support", warm, alpha=1.5, sampling={"max_tokens": 40}),
        make_persona(acme, "plain", system_prompt="You work for Acme."),
    ]


def column(page: Page, name: str) -> Locator:
    """The `persona` or `base` column."""
    return page.locator(f"[data-column={name}]")


def answer(page: Page, name: str) -> Locator:
    return column(page, name).locator("[data-answer]")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.keyboard.press("Control+Enter")


def expect_done(page: Page, *names: str) -> None:
    for name in names:
        expect(column(page, name)).to_have_attribute("data-state", re.compile("done|cut"), timeout=60_000)


def set_strength(page: Page, value: float) -> None:
    """By keyboard: the slider starts at 1.0."""
    slider = page.get_by_label("Strength", exact=True)
    slider.focus()
    at_ten = round(float(slider.input_value()) * 10)
    for _ in range(abs(round(value * 10) - at_ten)):
        page.keyboard.press("ArrowRight" if value * 10 > at_ten else "ArrowLeft")
    expect(slider).to_have_value(f"{value:g}")


def open_playground(open_page: OpenPage, user: User, path: str = "/playground/", **look: object) -> Page:
    """With the socket open and the first engine state shown."""
    page = open_page(path, user=user, **look)
    expect(page.locator("#engines")).to_have_attribute("data-state", re.compile("ready|starting|bad"))
    return page


def test_a_persona_is_found_by_its_skill_and_picked_with_the_keyboard(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice, "/playground/?persona=acme/plain")
    expect(page.get_by_role("heading", level=1)).to_have_text("Plain")
    page.keyboard.press("Control+k")
    page.keyboard.type("warm")
    expect(page.get_by_role("option")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Support")
    expect(page).to_have_url("/playground/?persona=acme/support")
    expect(page.get_by_label("Blend")).to_have_text(re.compile(r"warm\s*layers 10, 14\s*α 1.50\s*all tokens"))
    expect(page.get_by_label("Tokens")).to_have_value("40")
    expect(page.get_by_label("Your message")).to_be_focused()
    assert "acme/support" in page.title() or "Support" in page.title()


def test_a_name_that_matches_goes_before_a_description_that_mentions_it(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    another = services.create_tenant(slug="zoo", name="Zoo", owner=alice)
    services.create_persona(tenant=personas[0].tenant, slug="a-rupert", name="Rupert", description="Unlike Sunny.")
    services.create_persona(tenant=another, slug="a-rain", name="Rain", description="Never sunny.")
    services.create_persona(tenant=another, slug="sunny", name="The welcome desk")
    page = open_playground(open_page, alice, "/playground/?persona=acme/plain")
    options = page.get_by_role("option")
    before = options.all_inner_texts()
    page.keyboard.press("Control+k")
    page.keyboard.type("sunny")
    expect(options).to_have_text([re.compile("welcome desk"), re.compile("Rain"), re.compile("Rupert")])
    expect(page.get_by_role("combobox")).to_have_attribute("aria-activedescendant", "persona-zoo-sunny")
    page.keyboard.press("Escape")
    expect(options).to_have_text(before, use_inner_text=True)
    page.keyboard.type("sunny")
    page.keyboard.press("Enter")
    expect(page).to_have_url("/playground/?persona=zoo/sunny")


def test_both_columns_answer_and_show_their_figures(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice, "/playground/?persona=acme/support")
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    for name in ("persona", "base"):
        expect(answer(page, name)).to_have_text("Hello!")
        expect(column(page, name).locator("[data-metric=ttft]")).to_have_text(re.compile(r"^\d+ ms$"))
        expect(column(page, name).locator("[data-metric=tokens]")).to_have_text("4")
        expect(column(page, name).locator("[data-metric=engine]")).to_have_text("stub")
    expect(column(page, "persona").locator("[data-metric=revision]")).to_have_text("1")
    expect(page.locator("#announcer")).to_contain_text("Unsteered: 4 tokens")
    expect(page.get_by_role("button", name="Run again")).to_be_enabled()


def test_moving_the_slider_runs_both_columns_again_so_that_they_stay_comparable(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice, "/playground/?persona=acme/support")
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    stub.does = streams(chunk("Steered more", "stop"), usage_chunk(), DONE)
    set_strength(page, 1.6)
    expect(answer(page, "persona")).to_have_text("Steered more")
    expect(answer(page, "base")).to_have_text("Steered more")
    expect(page.get_by_label("Blend")).to_contain_text("α 1.50 → 2.40")
    expect(column(page, "persona").locator(".answer__note")).to_have_text("at 1.6×")
    steered, unsteered = sorted(stub.requests[2:], key=lambda body: "vllm_xargs" not in body)
    assert json.loads(steered["vllm_xargs"]["steerguard"])["blend"][0]["alpha"] == pytest.approx(2.4)
    assert "vllm_xargs" not in unsteered


def test_stop_ends_the_answer_and_the_generation(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice)
    stub.does = streams(chunk("Once upon"), then="hangs")
    ask(page, "Hi")
    expect(answer(page, "base")).to_have_text("Once upon")
    page.get_by_role("button", name="Stop").click()
    expect(column(page, "base")).to_have_attribute("data-state", "stopped")
    expect(answer(page, "base")).to_have_text("Once upon")
    assert stub.aborted.wait(PATIENCE_S)


def test_text_is_shown_and_copied_as_it_is(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice)
    text = "<img src=x onerror=alert(1)>\n\n  two  spaces &amp; <b>no bold</b>"
    stub.does = streams(*(chunk(letter) for letter in text), chunk("", "stop"), DONE)
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    selected = "(element) => { getSelection().selectAllChildren(element); return getSelection().toString(); }"
    assert answer(page, "persona").evaluate(selected) == text
    assert answer(page, "persona").locator("img, b").count() == 0


def test_an_error_stands_in_its_column_with_what_to_do(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice)
    stub.does = refuses(400, "The prompt is too long for this model.")
    ask(page, "Hi")
    expect(column(page, "persona")).to_contain_text("The prompt is too long for this model.")
    expect(column(page, "persona")).to_contain_text("Shorten the message")
    assert violations(page) == []
    stub.does = StubEngine().does
    page.get_by_role("button", name="Run again").click()
    expect_done(page, "persona", "base")
    expect(column(page, "persona").locator(".answer__error")).not_to_be_visible()


def test_asking_waits_for_the_engine_and_says_why(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    Engine.objects.update(status="starting", status_detail="loading the model")
    page = open_playground(open_page, alice)
    button = page.get_by_role("button", name="Ask")
    expect(page.locator("#engines")).to_have_text("Engine stub: loading the model")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_accessible_description(re.compile("isn’t ready yet"))
    Engine.objects.update(status="starting", status_detail="vectors 3/10 in place")
    in_thread(status_feed.push_engines)
    expect(page.locator("#engines")).to_have_text("Engine stub: vectors 3/10 in place")
    Engine.objects.update(status="ready", status_detail="")
    in_thread(status_feed.push_engines)
    expect(button).to_have_attribute("aria-disabled", "false")
    expect(page.locator("#engines")).to_have_attribute("data-state", "ready")


def test_a_lost_connection_comes_back_by_itself(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice)
    stub.does = streams(chunk("Once upon"), then="hangs")
    ask(page, "Hi")
    expect(answer(page, "base")).to_have_text("Once upon")
    page.evaluate("dispatchEvent(new Event('offline'))")
    expect(page.locator("#connection")).to_have_text("Connection lost, reconnecting…")
    expect(column(page, "base")).to_contain_text("The connection dropped.")
    assert stub.aborted.wait(PATIENCE_S)
    stub.does = StubEngine().does
    expect(page.locator("#connection")).to_have_text("")
    page.get_by_role("button", name="Run again").click()
    expect_done(page, "persona", "base")


def test_the_snippets_name_the_persona_and_this_server(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice, "/playground/?persona=acme/support")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Your message").fill('It\'s "broken"')
    page.get_by_role("button", name="Use in code").click()
    curl = page.locator("#snippet-curl").inner_text()
    assert re.search(r"curl http://127\.0\.0\.1:\d+/v1/chat/completions", curl)
    assert '"model": "acme/support"' in curl
    assert "It'\\''s \\\"broken\\\"" in curl
    compile(page.locator("#snippet-python").inner_text(), "snippet", "exec")
    assert violations(page) == []
    page.get_by_role("button", name="Copy", exact=True).first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == curl
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()
    expect(page.get_by_role("button", name="Use in code")).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 768, 320])
def test_is_accessible_and_fits(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User, theme: str, width: int
) -> None:
    page = open_playground(open_page, alice, theme=theme, width=width)
    assert violations(page) == []
    stub.does = streams(chunk("A" * 400), chunk("\nend", "stop"), usage_chunk(), DONE)
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    assert violations(page) == []
    assert not scrolls_sideways(page)


@pytest.mark.parametrize("width", [1440, 375])
def test_a_long_unbroken_name_pushes_nothing_out(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User, width: int
) -> None:
    services.update_persona(persona=personas[0], name="W" * 200, description="D" * 300)
    page = open_playground(open_page, alice, "/playground/?persona=acme/support", width=width)
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    assert not scrolls_sideways(page)
    sticks_out = """(answer) => [...answer.querySelectorAll("button, dd, .answer__note, .answer__scroll")].filter(
        (part) => part.getBoundingClientRect().right > answer.getBoundingClientRect().right).length"""
    assert column(page, "persona").evaluate(sticks_out) == 0
    if width < 800:
        page.get_by_role("button", name="Switch").click()
    listed = page.get_by_role("option", name="WWW")
    expect(listed).to_be_visible()
    assert page.get_by_role("listbox").evaluate("(list) => list.scrollWidth <= list.clientWidth")
    assert violations(page) == []


def test_on_a_phone_the_list_opens_over_the_page(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice, "/playground/?persona=acme/plain", width=320, height=640)
    expect(page.get_by_role("option").first).not_to_be_visible()
    page.get_by_role("button", name="Switch").click()
    expect(page.get_by_role("combobox", name="Find a persona")).to_be_focused()
    assert violations(page) == []
    page.get_by_role("option", name="Support").click()
    expect(page.get_by_role("option").first).not_to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("Support")


def test_nothing_moves_while_text_streams(
    open_page: OpenPage, stub: StubEngine, personas: list[Persona], alice: User
) -> None:
    page = open_playground(open_page, alice)
    page.evaluate(
        """() => {
            window.shifted = [];
            new PerformanceObserver((list) => {
                for (const entry of list.getEntries())
                    for (const source of entry.sources) window.shifted.push(source.node?.outerHTML ?? "gone");
            }).observe({type: "layout-shift", buffered: false});
        }"""
    )
    stub.does = streams(*(chunk(f"line {n} of the answer\n") for n in range(200)), chunk("end", "stop"), DONE)
    ask(page, "Hi")
    expect_done(page, "persona", "base")
    assert page.evaluate("window.shifted") == []
    scroll = column(page, "persona").locator(".answer__scroll")
    assert scroll.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") <= 1


@pytest.mark.engine
def test_the_real_engine_is_steered_as_the_slider_says(
    open_page: OpenPage,
    engine: TestEngine,
    register: RegisterEngine,
    personas: list[Persona],
    alice: User,
) -> None:
    row = register(engine.url, name="local", key=engine.key, status="starting", model="")
    in_thread(lambda: reconcile_exclusively(row.pk, on_change=True))
    page = open_playground(open_page, alice)
    expect(page.locator("#engines")).to_have_text("Engine local: ready")
    page.keyboard.press("Control+k")
    page.keyboard.type("support")
    page.keyboard.press("Enter")
    ask(page, "How does rain form?")
    expect_done(page, "persona", "base")
    steered, unsteered = (answer(page, name).inner_text() for name in ("persona", "base"))
    assert len(unsteered) > 40
    assert steered != unsteered
    dose = column(page, "persona").locator("[data-metric=dose]")
    expect(dose).to_have_text(re.compile(r"^\d\.\d\d$"))
    at_one = float(dose.inner_text())
    set_strength(page, 2.0)
    expect(column(page, "persona").locator(".answer__note")).to_have_text("at 2.0×")
    expect_done(page, "persona", "base")
    assert answer(page, "persona").inner_text() not in (steered, unsteered)
    assert float(dose.inner_text()) == pytest.approx(2 * at_one, abs=0.02)
    set_strength(page, 0.0)
    expect(column(page, "persona").locator(".answer__note")).to_have_text("at 0.0×")
    expect_done(page, "persona", "base")
    assert answer(page, "persona").inner_text() == answer(page, "base").inner_text()
