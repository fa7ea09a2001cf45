"""Bringing a vector in and looking at it, in a browser."""

from pathlib import Path

import numpy as np
import pytest
import torch
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from personas.models import SteeringVector, Tenant
from tests.conftest import MakePersona, MakeVector
from tests.e2e.conftest import OpenPage, scrolls_sideways, violations
from tests.steerguard.vectors.importers import tools

pytestmark = [pytest.mark.browser, pytest.mark.timeout(1_800)]

ROW = np.arange(1, 9, dtype=np.float32)
READING_MS = 600_000  # a process starts for each file, on a machine that may be busy


def fill_model(page: Page) -> None:
    page.get_by_label("Base model").fill("tiny")
    page.get_by_label("Hidden size").fill("8")
    page.get_by_label("Blocks", exact=True).fill("4")


def test_a_file_is_read_asked_about_and_stored(open_page: OpenPage, alice: User, acme: Tenant, tmp_path: Path) -> None:
    file = tmp_path / "Calm voice.pt"
    file.write_bytes(tools.saved(torch.from_numpy(ROW)))
    page = open_page("/vectors/", user=alice)
    page.get_by_role("link", name="Import a vector for Acme").click()
    page.get_by_label("File", exact=True).set_input_files(file)
    fill_model(page)
    page.get_by_role("button", name="Read the file").click()
    layer = page.get_by_label("Block, from 0")
    expect(layer).to_be_focused(timeout=READING_MS)
    expect(page.locator("#layer-problem")).to_contain_text("the file holds one vector and says no layer")
    layer.fill("2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="What was understood")).to_be_visible(timeout=READING_MS)
    expect(page.locator('[data-preview="blocks"]')).to_have_text("2 (1 in all)")
    expect(page.get_by_label("Name", exact=True)).to_have_value("calm-voice")
    assert violations(page) == []
    assert not SteeringVector.objects.exists()
    page.get_by_role("button", name="Store the vector").click()
    expect(page.get_by_role("heading", name="calm-voice")).to_be_visible(timeout=READING_MS)
    expect(page.locator(".bars__bar")).to_have_count(1)
    stored = SteeringVector.objects.get()
    assert (stored.tenant, stored.layers, stored.base_model) == (acme, [2], "tiny")
    assert page.url.endswith(f"/vectors/acme/{stored.digest}/")


def test_a_refusal_is_at_its_field(open_page: OpenPage, alice: User, acme: Tenant, tmp_path: Path) -> None:
    page = open_page("/vectors/acme/import/", user=alice)
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#file-problem")).to_have_text("Choose a file.")
    file = tmp_path / "x.gguf"
    file.write_bytes(tools.repeng({1: ROW})[:-8])
    page.get_by_label("File", exact=True).set_input_files(file)
    fill_model(page)
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#file-problem")).to_contain_text("found the end of the file after 24", timeout=READING_MS)
    expect(page.get_by_label("File", exact=True)).to_have_attribute("aria-invalid", "true")
    file.write_bytes(tools.llama_cpp({1: ROW}))
    page.get_by_label("File", exact=True).set_input_files(file)
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#preview-warnings")).to_contain_text("one block later", timeout=READING_MS)
    expect(page.locator('[data-preview="blocks"]')).to_have_text("0 (1 in all)")
    page.get_by_text("What the file may leave open").click()
    page.get_by_label("llama.cpp’s direction.N").select_option("applied")
    expect(page.locator("#preview")).to_be_hidden()
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator('[data-preview="blocks"]')).to_have_text("1 (1 in all)", timeout=READING_MS)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible_and_fit(
    open_page: OpenPage,
    alice: User,
    acme: Tenant,
    make_vector: MakeVector,
    make_persona: MakePersona,
    theme: str,
    width: int,
) -> None:
    warm = make_vector(acme, "warm", layers=tuple(range(30)))
    for seed in range(1, 5):
        make_vector(acme, f"other-{seed}", seed=seed, layers=tuple(range(0, 30, seed)))
    make_persona(acme, "support", warm)
    for path in ("/vectors/", f"/vectors/acme/{warm.digest}/", "/vectors/acme/import/"):
        page = open_page(path, user=alice, theme=theme, width=width)
        page.evaluate("for (const more of document.querySelectorAll('details')) more.open = true")
        assert violations(page) == []
        assert not scrolls_sideways(page)
