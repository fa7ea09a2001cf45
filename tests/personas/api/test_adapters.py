"""Adapters over the API: checked when they come in, and out comes what would go in again."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from personas import adapters
from personas.models import Adapter, AuditEvent, Tenant
from tests.personas.api.conftest import Api, MakeKey, problem
from tests.steerguard.adapters.making import CONFIG, WEIGHTS, edit_config, save_adapter, save_base

ADAPTERS = "tenants/acme/adapters"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("models") / "Tiny-1B-Instruct")


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a good adapter."""
    folder = save_adapter(base, tmp_path_factory.mktemp("adapters") / "good", target_modules=["q_proj"])
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


@pytest.fixture(autouse=True)
def served(base: Path, settings: Any, tmp_path: Path) -> None:
    settings.MODEL = str(base)
    settings.DATA_DIR = tmp_path / "data"


def zipped(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def changed(files: dict[str, bytes], tmp_path: Path, **settings: Any) -> dict[str, bytes]:
    (tmp_path / CONFIG).write_bytes(files[CONFIG])
    edit_config(tmp_path, **settings)
    return {**files, CONFIG: (tmp_path / CONFIG).read_bytes()}


def send(api: Api, path: str = ADAPTERS, /, *, key: str | None = None, **fields: Any) -> Any:
    form = {
        name: SimpleUploadedFile(name, value) if isinstance(value, bytes) else value for name, value in fields.items()
    }
    headers = {"idempotency_key": key} if key else {}
    return api.post(path, encode_multipart(BOUNDARY, form), content_type=MULTIPART_CONTENT, **headers)


def body(answer: Any) -> bytes:
    return b"".join(answer)


def stored() -> list[str]:
    root = adapters.store().scratch().parent
    return sorted(path.name for path in root.iterdir() if path.name != ".scratch")


def test_an_archive_goes_in_and_comes_out_as_what_would_go_in_again(
    editor: Api, viewer: Api, acme: Tenant, trained: dict[str, bytes]
) -> None:
    made = send(editor, name="tone", description="Warm", file=zipped(trained))
    assert made.status_code == 201, made.content
    said = made.json()
    assert {name: said[name] for name in ("name", "description", "base_model", "rank", "target_modules")} == {
        "name": "tone",
        "description": "Warm",
        "base_model": "Tiny-1B-Instruct",
        "rank": 4,
        "target_modules": ["q_proj"],
    }
    assert said["num_parameters"] == 4 * 4 * (128 + 128)
    assert stored() == [said["digest"]]
    row = Adapter.objects.get()
    assert row.engine_id.startswith("sga-")
    assert "acme" not in row.engine_id and "tone" not in row.engine_id
    assert row.engine_id not in made.content.decode()

    got = viewer.get(f"{ADAPTERS}/{said['digest']}/file")
    data = body(got)
    assert got.headers["Content-Type"] == "application/x-tar"
    assert got.headers["Content-Disposition"] == f'attachment; filename="tone-{said["digest"][:12]}.tar"'
    assert int(got.headers["Content-Length"]) == len(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [Path(name).name for name in archive.getnames()] == [CONFIG, WEIGHTS]
    again = send(editor, name="tone-2", file=data)
    assert (again.status_code, again.json()["digest"], again.json()["name"]) == (200, said["digest"], "tone-2")
    assert Adapter.objects.count() == 1


def test_the_two_files_go_in_as_they_are(editor: Api, acme: Tenant, trained: dict[str, bytes]) -> None:
    made = send(editor, name="tone", config=trained[CONFIG], weights=trained[WEIGHTS])
    assert made.status_code == 201, made.content
    assert send(editor, name="tone", file=zipped(trained)).json()["digest"] == made.json()["digest"]


def test_what_is_wrong_is_listed_by_field_and_nothing_is_stored(
    editor: Api, acme: Tenant, trained: dict[str, bytes], tmp_path: Path
) -> None:
    bad = changed(trained, tmp_path, use_dora=True, r=64, base_model_name_or_path="acme/Tiny-1B")
    answer = send(editor, name="tone", file=zipped(bad))
    said = problem(answer, 422, "use_dora", "r", "base_model_name_or_path", "r")
    assert said["type"] == "urn:steerguard:problem:invalid-adapter"
    assert said["errors"][1] == {
        "field": "r",
        "expected": "at most 16 (the engine's max_lora_rank)",
        "found": "64",
    }
    assert not Adapter.objects.exists()
    assert stored() == []
    assert list(adapters.store().scratch().iterdir()) == []


def test_nothing_of_an_upload_stays_behind(editor: Api, acme: Tenant, trained: dict[str, bytes]) -> None:
    send(editor, name="tone", file=zipped(trained))
    send(editor, name="tone", file=b"nonsense")
    send(editor, name="Not A Slug", file=zipped(trained))
    assert list(adapters.store().scratch().iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "status", "wrong"),
    [
        ({}, 400, ["name", "file"]),
        ({"name": "tone"}, 400, ["file"]),
        ({"name": "tone", "config": b"{}"}, 400, ["file"]),
        ({"name": "tone", "config": b"{}", "weights": b"", "file": b""}, 400, ["file"]),
        ({"name": "tone", "file": "text"}, 400, ["file"]),
        ({"name": "Not A Slug", "file": b""}, 400, ["name"]),
        ({"name": "tone", "file": b"", "tenant": "globex"}, 400, ["tenant"]),
        ({"name": "tone", "file": b"\x80\x04}."}, 422, ["archive"]),
        ({"name": "tone", "file": b""}, 422, ["archive"]),
        ({"name": "tone", "config": b"", "weights": b""}, 422, ["adapter_config.json", "adapter_model.safetensors"]),
    ],
)
def test_what_is_no_adapter_is_refused(
    editor: Api, acme: Tenant, fields: dict[str, Any], status: int, wrong: list[str]
) -> None:
    answer = send(editor, **fields)
    assert answer.status_code == status, answer.content
    assert {error["field"] for error in answer.json()["errors"]} >= set(wrong[:1]), answer.content
    assert not Adapter.objects.exists()


def test_an_upload_too_large_is_refused_by_its_length(editor: Api, acme: Tenant, settings: Any) -> None:
    settings.MAX_ADAPTER_MIB = 1
    problem(send(editor, name="tone", file=b"x" * 1_200_000), 413)


def test_a_tenant_has_room_for_so_much(
    editor: Api, acme: Tenant, trained: dict[str, bytes], tmp_path: Path, settings: Any, monkeypatch: Any
) -> None:
    assert send(editor, name="a", file=zipped(trained)).status_code == 201
    other = zipped(changed(trained, tmp_path, lora_alpha=3))
    settings.MAX_TENANT_ADAPTERS_MIB = 0
    problem(send(editor, name="b", file=other), 409, "adapter")
    settings.MAX_TENANT_ADAPTERS_MIB = 100
    monkeypatch.setattr(adapters, "MAX_ADAPTERS", 1)
    problem(send(editor, name="b", file=other), 409, "adapter")
    assert send(editor, name="a-again", file=zipped(trained)).status_code == 200


def test_without_a_base_model_here_nothing_can_be_checked(
    editor: Api, acme: Tenant, trained: dict[str, bytes], settings: Any
) -> None:
    settings.MODEL = "acme/on-a-hub"
    problem(send(editor, name="tone", file=zipped(trained)), 409, "base")


def test_a_form_that_is_sent_twice_under_one_key_stores_once(
    editor: Api, acme: Tenant, trained: dict[str, bytes]
) -> None:
    first = send(editor, key="a1", name="tone", file=zipped(trained))
    again = send(editor, key="a1", name="tone", file=zipped(trained))
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    problem(send(editor, key="a1", name="other", file=zipped(trained)), 422)


def test_what_is_said_changes_and_an_adapter_goes(
    editor: Api, viewer: Api, acme: Tenant, trained: dict[str, bytes], django_capture_on_commit_callbacks: Any
) -> None:
    digest = send(editor, name="tone", file=zipped(trained)).json()["digest"]
    said = editor.patch(f"{ADAPTERS}/{digest}", {"name": "calmer", "description": "Calm"}).json()
    assert (said["name"], said["description"], said["digest"]) == ("calmer", "Calm", digest)
    problem(editor.patch(f"{ADAPTERS}/{digest}", {}), 400, "body")
    problem(editor.patch(f"{ADAPTERS}/{digest}", {"name": "Not A Slug"}), 400, "name")
    assert editor.delete(f"{ADAPTERS}/{digest}").status_code == 204
    for path in (f"{ADAPTERS}/{digest}", f"{ADAPTERS}/{digest}/file"):
        problem(viewer.get(path), 404)
    actions = [event.action for event in AuditEvent.objects.filter(action__startswith="adapter.").order_by("pk")]
    assert actions == ["adapter.stored", "adapter.updated", "adapter.deleted"]


def test_lists_are_filtered_and_show_ones_own(
    editor: Api, acme: Tenant, globex: Tenant, outsider: Api, trained: dict[str, bytes], tmp_path: Path
) -> None:
    send(editor, name="one", file=zipped(trained))
    send(editor, name="two", file=zipped(changed(trained, tmp_path, lora_alpha=3)))
    assert [one["name"] for one in editor.get(ADAPTERS).json()["results"]] == ["one", "two"]
    assert [one["name"] for one in editor.get(f"{ADAPTERS}?name=two").json()["results"]] == ["two"]
    assert [one["name"] for one in editor.get(f"{ADAPTERS}?ordering=-created_at").json()["results"]] == ["two", "one"]
    assert outsider.get("tenants/globex/adapters").json()["results"] == []


def test_the_same_adapter_of_two_tenants_is_each_ones_own(
    editor: Api, outsider: Api, acme: Tenant, globex: Tenant, trained: dict[str, bytes]
) -> None:
    ours = send(editor, name="tone", file=zipped(trained))
    theirs = send(outsider, "tenants/globex/adapters", name="tone", file=zipped(trained))
    assert (ours.status_code, theirs.status_code) == (201, 201)  # not 200: that would say that somebody has it
    assert len({row.engine_id for row in Adapter.objects.all()}) == 2
    digest = ours.json()["digest"]
    assert stored() == [digest]
    assert editor.delete(f"{ADAPTERS}/{digest}").status_code == 204
    adapters.collect_unused()
    assert body(outsider.get(f"tenants/globex/adapters/{digest}/file"))


def test_who_may_look_and_who_may_change(
    viewer: Api, editor: Api, outsider: Api, acme: Tenant, trained: dict[str, bytes], with_key: MakeKey
) -> None:
    digest = send(editor, name="tone", file=zipped(trained)).json()["digest"]
    for asker in (viewer, with_key(acme, "read"), with_key(acme, "manage")):
        assert asker.get(f"{ADAPTERS}/{digest}").status_code == 200
        assert body(asker.get(f"{ADAPTERS}/{digest}/file"))
    for asker in (viewer, with_key(acme, "read"), with_key(acme, "inference")):
        problem(send(asker, name="mine", file=zipped(trained)), 403)
        problem(asker.patch(f"{ADAPTERS}/{digest}", {"name": "mine"}), 403)
        problem(asker.delete(f"{ADAPTERS}/{digest}"), 403)
    assert send(with_key(acme, "manage"), name="theirs", file=zipped(trained)).status_code == 200
    for method in ("GET", "PATCH", "DELETE"):
        problem(outsider.ask(method, f"{ADAPTERS}/{digest}", {"name": "mine"}), 404)
    problem(send(outsider, name="mine", file=zipped(trained)), 404)


@pytest.mark.django_db(transaction=True)
def test_files_go_with_the_last_row_once_they_are_not_new(
    editor: Api, acme: Tenant, trained: dict[str, bytes], tmp_path: Path, monkeypatch: Any
) -> None:
    kept = send(editor, name="kept", file=zipped(trained)).json()["digest"]
    gone = send(editor, name="gone", file=zipped(changed(trained, tmp_path, lora_alpha=3))).json()["digest"]
    monkeypatch.setattr(adapters, "GRACE_S", -1.0)
    assert editor.delete(f"{ADAPTERS}/{gone}").status_code == 204
    assert stored() == [kept]
