"""The vector pages, as HTML: who sees which, and what they say of a vector."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from personas import services, vector_files
from personas.models import SteeringVector, Tenant
from personas.vector_charts import heat_rows, norm_chart
from personas.vector_similarity import compare, cosines
from personas.vector_views import ranges
from steerguard.vectors import SteeringVector as VectorContent
from tests.conftest import BASE_MODEL, MakePersona, MakeVector, random_vector


def html(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def text(page: str) -> str:
    """A page's words."""
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def store(tenant: Tenant | None, name: str, layers: dict[int, np.ndarray], **described: object) -> SteeringVector:
    size = len(next(iter(layers.values())))
    content = VectorContent(layers, size, BASE_MODEL, name, **described)  # type: ignore[arg-type]
    return services.store_vector(tenant=tenant, vector=content)


def test_the_list_shows_ones_own_and_the_shared_ones(
    acme: Tenant, globex: Tenant, alice_client: Client, make_vector: MakeVector, make_persona: MakePersona
) -> None:
    warm = make_vector(acme, "warm", layers=(8, 9, 10, 14))
    make_vector(None, "bright", seed=1)
    make_vector(globex, "secret", seed=2)
    make_persona(acme, "support", warm)
    make_persona(acme, "desk", warm)
    page = html(alice_client, "/vectors/")
    assert "8–10, 14" in page
    assert re.search(r">warm</a></th>.*?table__number\">2</td>", page, re.DOTALL)
    assert re.search(r">bright</a> <span class=\"chip\">shared</span>", page)
    assert "secret" not in page
    assert "globex" not in page.lower()
    assert "/vectors/acme/import/" in page


def test_viewers_look_and_do_not_import(acme: Tenant, client: Client, make_vector: MakeVector) -> None:
    victor = User.objects.create_user("victor")
    services.add_member(tenant=acme, user=victor, role="viewer")
    client.force_login(victor)
    warm = make_vector(acme, "warm")
    assert "/vectors/acme/import/" not in html(client, "/vectors/")
    assert html(client, f"/vectors/acme/{warm.digest}/")
    assert client.get("/vectors/acme/import/").status_code == 404


def test_an_outsider_gets_what_nobody_has(
    acme: Tenant, globex: Tenant, alice_client: Client, charlie_client: Client, make_vector: MakeVector
) -> None:
    warm = make_vector(acme, "warm")
    assert html(alice_client, f"/vectors/acme/{warm.digest}/")
    nobodys = charlie_client.get(f"/vectors/nosuch/{'0' * 64}/")
    for path in (
        f"/vectors/acme/{warm.digest}/",
        f"/vectors/globex/{warm.digest}/",
        f"/vectors/globex/{'0' * 64}/",
        "/vectors/acme/import/",
    ):
        refused = charlie_client.get(path)
        assert (refused.status_code, refused.content) == (404, nobodys.content)
    assert Client().get(f"/vectors/acme/{warm.digest}/").status_code == 302


def test_a_vectors_page_says_what_it_is(acme: Tenant, alice_client: Client, make_persona: MakePersona) -> None:
    row = store(
        acme,
        "warm",
        {3: np.full(4, 2, np.float32), 7: np.full(4, 4, np.float32)},
        provenance={"source_format": "repeng", "source_sha256": "ab" * 32, "norm": "raw", "residual_norm.3": "40"},
    )
    make_persona(acme, "support", row)
    draft = services.create_persona(tenant=acme, slug="idea", name="Idea", definition={"blend": []})
    services.save_draft(persona=draft, definition={"blend": [{"vector": row.digest}]})
    old = make_persona(acme, "gone", row)
    services.save_draft(persona=old, definition={})
    services.publish_persona(persona=old)
    page = html(alice_client, f"/vectors/acme/{row.digest}/")
    words = text(page)
    assert page.count("bars__bar") == 2
    assert "3 4.000 0.100" in words, "block, norm, dose"
    assert "7 8.000" in words
    assert "Format repeng" in words
    assert "ab" * 32 in words
    assert "Support acme/support published" in words
    assert "Idea acme/idea draft" in words
    assert "Gone acme/gone an old revision" in words
    assert f"/api/v1/tenants/acme/vectors/{row.digest}/file?format=llama.cpp" in page


def test_likeness_is_by_block_and_warns(acme: Tenant, globex: Tenant, alice_client: Client) -> None:
    random = np.random.default_rng(0)
    one, two = random.normal(size=(2, 16)).astype(np.float32)
    warm = store(acme, "warm", {3: one, 7: two})
    store(acme, "warmer", {3: 2 * one, 9: two})
    store(None, "cold", {7: -two})
    store(acme, "elsewhere", {5: one})
    store(globex, "theirs", {3: 3 * one})
    page = html(alice_client, f"/vectors/acme/{warm.digest}/")
    words = text(page)
    assert "Points the same way as warmer (cosine 1.00)" in words
    assert "Is the opposite of cold (cosine -1.00)" in words
    assert 'data-level="10">1.00' in page
    assert 'data-level="-10">−1.00' in page
    assert "elsewhere" not in words
    assert "theirs" not in words
    (row,) = re.findall(r"<tr><th scope=\"row\"><a [^>]*>warmer</a></th>(.*?)</tr>", page)
    assert row == '<td data-level="10">1.00</td><td></td>', "block 3, and nothing at block 7"


def test_vectors_of_another_model_are_not_compared(acme: Tenant, alice_client: Client, make_vector: MakeVector) -> None:
    warm = make_vector(acme, "warm")
    make_vector(acme, "other", base_model="another-model", seed=1)
    assert "No other vector" in html(alice_client, f"/vectors/acme/{warm.digest}/")


def test_a_vector_without_its_file_still_has_a_page(
    acme: Tenant, alice_client: Client, make_vector: MakeVector
) -> None:
    warm, cold = make_vector(acme, "warm"), make_vector(acme, "cold", seed=1)
    vector_files.path_of(warm.digest).unlink()
    assert "gone or broken" in text(html(alice_client, f"/vectors/acme/{warm.digest}/"))
    assert "No other vector" in html(alice_client, f"/vectors/acme/{cold.digest}/")


def test_names_and_sources_are_text(acme: Tenant, alice_client: Client) -> None:
    attack = "<script>alert(1)</script>"
    row = store(acme, "warm", {3: np.ones(4, np.float32)}, provenance={"method": attack, attack: attack})
    services.update_vector(vector=row, description=attack)
    for path in ("/vectors/", f"/vectors/acme/{row.digest}/"):
        assert "<script>alert" not in html(alice_client, path)


def test_the_import_page_knows_the_models(
    acme: Tenant, alice_client: Client, make_vector: MakeVector, settings: object, tmp_path: object
) -> None:
    settings.MODEL = str(tmp_path)  # type: ignore[attr-defined]
    make_vector(acme, "warm")
    store(acme, "deep", {3: np.ones(4, np.float32)}, provenance={"num_layers": "30"})
    page = html(alice_client, "/vectors/acme/import/")
    found = re.search(r'<script id="page-data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert {model["name"] for model in data["models"]} == {BASE_MODEL}
    assert data["preview_url"] == "/api/v1/tenants/acme/vectors/preview"
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 5}))  # type: ignore[operator]
    assert '"num_layers": 5' in html(alice_client, "/vectors/acme/import/")


@pytest.mark.parametrize("path", ["/vectors/", "/vectors/acme/import/", "detail"])
def test_pages_obey_their_own_security_policy(
    path: str, acme: Tenant, alice_client: Client, make_vector: MakeVector
) -> None:
    warm = make_vector(acme, "warm", layers=(3, 10))
    make_vector(acme, "cold", layers=(3, 10), seed=1)
    page = html(alice_client, f"/vectors/acme/{warm.digest}/" if path == "detail" else path)
    assert re.findall(r"<style|<[^>]+\s(?:style|on\w+)=", page) == []
    assert [tag for tag in re.findall(r"<script[^>]*>", page) if "src=" not in tag and "json" not in tag] == []


def test_many_vectors_take_few_queries(
    acme: Tenant, alice_client: Client, make_vector: MakeVector, django_assert_max_num_queries: object
) -> None:
    for seed in range(30):
        make_vector(acme, f"v{seed}", seed=1_000 + seed)
    last = SteeringVector.objects.latest("created_at")
    with django_assert_max_num_queries(8):  # type: ignore[operator]
        html(alice_client, "/vectors/")
    with django_assert_max_num_queries(10):  # type: ignore[operator]
        html(alice_client, f"/vectors/acme/{last.digest}/")


def test_cosines_are_of_directions_and_not_of_sizes() -> None:
    one = random_vector("a", seed=1, layers=(1, 2), hidden_size=8)
    tiny = VectorContent({2: (one.layers[2] * np.float32(1e-38))}, 8)
    huge = VectorContent({2: -(one.layers[2] * np.float32(1e37))}, 8)
    assert cosines(one, tiny)[2] == pytest.approx(1, abs=1e-5)
    assert cosines(one, huge) == {2: pytest.approx(-1)}
    assert cosines(
        VectorContent({0: np.array([1, 0], np.float32)}, 2), VectorContent({0: np.array([1, 1], np.float32)}, 2)
    ) == {0: pytest.approx(2**-0.5)}


def test_the_most_alike_or_opposed_come_first(acme: Tenant, make_vector: MakeVector) -> None:
    content = VectorContent({1: np.array([1, 0], np.float32)}, 2)
    for name, row in (("aside", [1, 2]), ("against", [-1, 0.1]), ("along", [1, 0.2])):
        store(acme, name, {1: np.array(row, np.float32)})
    found = compare(content, SteeringVector.objects.all())
    assert [(one.other.name, one.warning) for one in found] == [
        ("against", "opposite"),
        ("along", "duplicate"),
        ("aside", ""),
    ]
    assert [[cell.level for cell in row.cells] for row in heat_rows(found, [1])] == [[-10], [10], [4]]


def test_bars_are_to_scale() -> None:
    chart = norm_chart({3: 10.0, 4: 5.0})
    assert [bar.height for bar in chart.bars] == [140.0, 70.0]
    assert chart.bars[0].y + chart.bars[0].height == chart.bars[1].y + chart.bars[1].height == chart.baseline
    assert [words for _, words in chart.ticks] == ["0", "5", "10"]
    assert chart.bars[-1].x + chart.bar_width < chart.width


def test_blocks_are_said_in_short() -> None:
    assert ranges([2, 8, 9, 10, 14, 15]) == "2, 8–10, 14–15"
    assert ranges([]) == ""
