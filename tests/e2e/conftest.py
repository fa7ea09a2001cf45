"""A real Chromium in front of the whole application, which runs under a real server in a thread.

Playwright's synchronous API keeps an event loop running in the test's thread. So Django is told that its ORM is fine
there, what needs a loop of its own goes to another thread (`in_thread`), and the browser is given back after each
module, before tests that are coroutines can meet that loop.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.inference.gateway.conftest import Gateway, gateway, register, stub

__all__ = ["gateway", "register", "stub"]

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
CHROMIUM_ARGS = [
    "--no-sandbox",  # needed as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1.min.js"
TIMEOUT_MS = 60_000
expect.set_options(timeout=TIMEOUT_MS)

OpenPage = Callable[..., Page]
Result = TypeVar("Result")


@pytest.fixture(autouse=True)
def _orm_beside_playwrights_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, gateway: Gateway) -> Iterator[OpenPage]:
    """Opens pages: `open_page("/playground/", user=alice, theme="dark", width=320)`.

    Whatever a page writes to its console as an error, blocked by the content security policy or thrown, fails the test.
    """
    complaints: list[str] = []
    with ExitStack() as stack:

        def open(
            path: str, *, user: User | None = None, theme: str = "light", width: int = 1440, height: int = 900
        ) -> Page:
            context = browser.new_context(
                base_url=gateway.url,
                color_scheme=theme,  # type: ignore[arg-type]
                viewport={"width": width, "height": height},
                reduced_motion="reduce",
            )
            stack.callback(context.close)
            context.set_default_timeout(TIMEOUT_MS)
            context.add_init_script(path=AXE)
            if user is not None:
                client = Client()
                client.force_login(user)
                context.add_cookies(
                    [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": gateway.url}]
                )
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text) if _is_complaint(message) else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(path)
            return page

        yield open
    assert complaints == []


def _is_complaint(message: ConsoleMessage) -> bool:
    """Chromium also reports what a page's script was refused, which answers a form and is no error of the page."""
    return message.type == "error" and "the server responded with a status of 422" not in message.text


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA and good practice: rule and element."""
    found: list[dict[str, Any]] = page.evaluate(
        """async () => {
            const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
            return (await axe.run(document, {runOnly: tags})).violations;
        }"""
    )
    return [f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def scrolls_sideways(page: Page) -> bool:
    scrolls: bool = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return scrolls


def in_thread(work: Callable[[], Result]) -> Result:
    """`work`'s result, from a thread that has no event loop."""

    def run() -> Result:
        try:
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
