"""Personas over the API: what each role may do with them, and two people who change one at the same time."""

import json

import pytest

from personas.models import AuditEvent, Persona, Tenant
from tests.personas.api.conftest import Api, MakeKey, Things, problem

DRAFT = {"system_prompt": "Hi."}


def test_an_editor_makes_changes_publishes_and_deletes_one(editor: Api, bob: object) -> None:
    made = editor.post("tenants/acme/personas", {"slug": "sales", "name": "Sales", "draft": DRAFT})
    assert made.status_code == 201
    assert made.json()["model"] == "acme/sales"
    assert made.json()["published"] is None
    assert made.json()["draft"]["system_prompt"] == "Hi."

    published = editor.post("tenants/acme/personas/sales/publish")
    assert published.status_code == 201
    assert published.json() | {"created_at": None} == {
        "number": 1,
        "model": "acme/sales@1",
        "definition": made.json()["draft"],
        "is_published": True,
        "created_by": "bob",
        "created_at": None,
    }
    changed = editor.patch("tenants/acme/personas/sales", {"draft": {"system_prompt": "Bye."}, "description": "New"})
    assert changed.json()["has_unpublished_changes"]
    assert changed.json()["description"] == "New"
    editor.post("tenants/acme/personas/sales/publish")
    replaced = editor.put("tenants/acme/personas/sales", {"name": "Sales desk"})
    assert (replaced.json()["name"], replaced.json()["description"]) == ("Sales desk", "")
    assert replaced.json()["draft"]["system_prompt"] == ""

    back = editor.post("tenants/acme/personas/sales/roll-back", {"number": 1})
    assert (back.status_code, back.json()["number"]) == (201, 3)
    revisions = editor.get("tenants/acme/personas/sales/revisions").json()["results"]
    assert [(one["number"], one["is_published"]) for one in revisions] == [(3, True), (2, False), (1, False)]
    assert editor.get("tenants/acme/personas/sales/revisions/2").json()["definition"]["system_prompt"] == "Bye."

    assert editor.delete("tenants/acme/personas/sales").status_code == 204
    assert not Persona.objects.exists()
    actions = list(AuditEvent.objects.filter(actor__username="bob").order_by("pk").values_list("action", flat=True))
    assert actions == [
        "persona.created",
        "persona.published",
        "persona.updated",
        "persona.draft_saved",
        "persona.published",
        "persona.updated",
        "persona.draft_saved",
        "persona.rolled_back",
        "persona.deleted",
    ]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"name": "A", "slug": "Not A Slug"}, ["slug"]),
        ({"name": "A"}, ["slug"]),
        ({"slug": "a", "name": 5}, ["name"]),
        ({"slug": "a", "name": "A", "draft": {"blend": [{"vector": "x"}]}}, ["draft.blend[0].vector"]),
        ({"slug": "a", "name": "A", "draft": []}, ["draft"]),
        ({"slug": "a", "name": "A", "drft": {}}, ["drft"]),
        ({"slug": "a", "name": "A\u0000"}, ["name"]),
        ({"slug": "a", "name": "\ud800"}, ["name"]),
        ({"slug": "a", "name": "A", "draft": {"sampling": {"seed": 10**400}}}, ["draft.sampling.seed"]),
        ({"slug": "a", "name": "x" * 201}, ["name"]),
        ([], ["body"]),
        ("text", ["body"]),
        (None, ["body"]),
    ],
)
def test_a_wrong_field_is_named(editor: Api, body: object, fields: list[str]) -> None:
    answer = editor.post("tenants/acme/personas", json.dumps(body).encode())
    assert problem(answer, 400, *fields)["errors"][0]["expected"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"name": NaN}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"draft":' + b'{"a":' * 60 + b"1" + b"}" * 61, "application/json", 400),
        (b'{"name": ' + b"1" * 5_000 + b"}", "application/json", 400),
        (b" " * (1024 * 1024 + 1), "application/json", 413),
        (b"slug=a", "application/x-www-form-urlencoded", 415),
        (b"<a/>", "application/xml", 415),
    ],
)
def test_a_hostile_body_is_refused(editor: Api, content: bytes, kind: str, status: int) -> None:
    problem(editor.post("tenants/acme/personas", content, content_type=kind), status)


def test_a_taken_name_is_a_conflict(editor: Api, things: Things) -> None:
    body = problem(editor.post("tenants/acme/personas", {"slug": "support", "name": "Again"}), 409, "slug")
    assert body["type"] == "urn:steerguard:problem:name-taken"


def test_two_who_change_one_at_the_same_time_notice(owner: Api, editor: Api, things: Things) -> None:
    path = "tenants/acme/personas/support"
    read = owner.get(path)
    etag = read.headers["ETag"]
    assert editor.get(path).headers["ETag"] == etag
    assert owner.get(path, if_none_match=etag).status_code == 304
    assert owner.get(path, if_none_match=f'"x", W/{etag}').status_code == 304
    changed = editor.patch(path, {"name": "Editor's"}, if_match=etag)
    assert changed.status_code == 200
    assert owner.get(path, if_none_match=etag).status_code == 200
    for answer in (
        owner.patch(path, {"name": "Owner's"}, if_match=etag),
        owner.put(path, {"name": "Owner's"}, if_match=etag),
        owner.delete(path, if_match=etag),
        owner.post(f"{path}/publish", if_match=etag),
        owner.post(f"{path}/roll-back", {"number": 1}, if_match=etag),
        owner.patch(path, {"name": "Owner's"}, if_match=f"W/{changed.headers['ETag']}"),
        owner.patch(path, {"name": "Owner's"}, if_match="nonsense"),
    ):
        problem(answer, 412)
        assert answer.headers["ETag"] == changed.headers["ETag"]
    assert owner.get(path).json()["name"] == "Editor's"
    assert owner.patch(path, {"name": "Owner's"}, if_match=changed.headers["ETag"]).status_code == 200
    assert owner.patch(path, {"name": "Mine"}, if_match="*").status_code == 200


def test_a_diff_names_what_differs(viewer: Api, editor: Api, things: Things) -> None:
    path = "tenants/acme/personas/support"
    editor.patch(path, {"draft": {"system_prompt": "Be brief."}})
    diff = viewer.get(f"{path}/diff").json()
    assert [change["field"] for change in diff["changes"]] == ["blend", "system_prompt"]
    assert "+system_prompt: Be brief." in diff["text"]
    assert viewer.get(f"{path}/diff?a=1&b=published").json()["changes"] == []
    problem(viewer.get(f"{path}/diff?a=9"), 404)
    problem(viewer.get(f"{path}/diff?a=later"), 400, "a")


def test_a_viewer_and_a_read_key_change_nothing(viewer: Api, with_key: MakeKey, acme: Tenant, things: Things) -> None:
    for reader in (viewer, with_key(acme, "read")):
        assert reader.get("tenants/acme/personas").json()["results"][0]["slug"] == "support"
        problem(reader.post("tenants/acme/personas", {"slug": "a", "name": "A"}), 403)
        problem(reader.delete("tenants/acme/personas/support"), 403)


def test_what_a_key_did_is_in_the_audit_log(with_key: MakeKey, acme: Tenant) -> None:
    asker = with_key(acme, "manage")
    prefix = acme.api_keys.get().prefix
    assert asker.post("tenants/acme/personas", {"slug": "a", "name": "A"}).status_code == 201
    event = AuditEvent.objects.get(action="persona.created")
    assert (event.actor, event.detail) == (None, {"by_key": prefix})


def test_lists_are_filtered_ordered_and_paged(viewer: Api, editor: Api, things: Things) -> None:
    for number in range(5):
        editor.post("tenants/acme/personas", {"slug": f"p{number}", "name": f"Same {number // 2}"})
    path = "tenants/acme/personas"

    def slugs(query: str) -> list[str]:
        found, url = [], f"{path}?{query}"
        while url:
            page = viewer.get(url).json()
            assert len(page["results"]) <= 2
            found += [one["slug"] for one in page["results"]]
            url = page["next"].removeprefix("http://testserver/api/v1/") if page["next"] else ""
        return found

    assert slugs("page_size=2") == ["p0", "p1", "p2", "p3", "p4", "support"]
    assert slugs("page_size=2&ordering=-name") == ["support", "p4", "p3", "p2", "p1", "p0"]
    assert slugs("page_size=2&published=true") == ["support"]
    assert slugs("page_size=2&search=ame+1") == ["p2", "p3"]
    assert slugs(f"page_size=2&vector={things.vector.digest}") == ["support"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("ordering=tenant__api_keys__digest", "ordering"),
        ("tenant__slug=globex", "tenant__slug"),
        ("page_size=0", "page_size"),
        ("page_size=201", "page_size"),
        ("cursor=nonsense", "cursor"),
        ("cursor=cD0lMDA%3D", "cursor"),  # p=%00
        ("cursor=bz05OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk%3D", "cursor"),  # o=9999…
        ("ordering=created_at&cursor=cD14", "cursor"),  # p=x
        ("search=%00", "search"),
        ("published=maybe", "published"),
    ],
)
def test_a_wrong_query_is_named(viewer: Api, query: str, field: str) -> None:
    problem(viewer.get(f"tenants/acme/personas?{query}"), 400, field)
