"""/v1/files: uploaded, read, listed, deleted; bounded, and nobody else's."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.utils import timezone

from jobs import cleaning
from jobs.errors import TooManyFiles
from jobs.files import services, storage
from jobs.models import StoredFile
from personas import services as persona_services
from personas.models import Tenant
from tests.inference.gateway.conftest import Gateway, eventually
from tests.waiting import PATIENCE_S

CONTENT = b'{"custom_id": "1"}\n'


def upload(
    program: httpx.Client,
    content: bytes = CONTENT,
    *,
    filename: str = "letters.jsonl",
    fields: dict[str, str] | None = None,
) -> httpx.Response:
    data = {"purpose": "batch", **(fields or {})}
    return program.post("/v1/files", files={"file": (filename, content)}, data=data)


def stored(folder: Path | None = None) -> list[str]:
    """What lies on the disk."""
    return sorted(path.name for path in (folder or storage.folder()).glob("*"))


@pytest.fixture(autouse=True)
def data_dir(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def test_a_file_is_uploaded_read_listed_and_deleted(program: httpx.Client) -> None:
    content = b"".join(b'{"custom_id": "%d"}\r\n' % number for number in range(20_000)) + "Grüße 世界\0".encode()
    made = upload(program, content).json()
    assert (made["object"], made["purpose"], made["bytes"]) == ("file", "batch", len(content))
    assert (made["filename"], made["status"]) == ("letters.jsonl", "processed")
    assert made["expires_at"] - made["created_at"] == 30 * 24 * 3600
    assert program.get(f"/v1/files/{made['id']}").json() == made
    answer = program.get(f"/v1/files/{made['id']}/content")
    assert answer.content == content
    assert answer.headers["content-disposition"].startswith('attachment; filename="letters.jsonl"')
    assert program.get("/v1/files").json()["data"] == [made]
    gone = program.delete(f"/v1/files/{made['id']}").json()
    assert gone == {"id": made["id"], "object": "file", "deleted": True}
    assert program.get(f"/v1/files/{made['id']}").status_code == 404
    assert program.get(f"/v1/files/{made['id']}/content").status_code == 404
    assert stored() == []


def test_pages_follow_each_other_either_way(program: httpx.Client) -> None:
    ids = [upload(program).json()["id"] for _ in range(3)]
    first = program.get("/v1/files?limit=2&order=asc").json()
    assert ([file["id"] for file in first["data"]], first["has_more"]) == (ids[:2], True)
    assert (first["first_id"], first["last_id"]) == (ids[0], ids[1])
    rest = program.get(f"/v1/files?limit=2&order=asc&after={ids[1]}").json()
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert [file["id"] for file in program.get("/v1/files?purpose=batch").json()["data"]] == ids[::-1]
    assert program.get("/v1/files?purpose=batch_output").json()["data"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "order=up", "purpose=fine-tune", "limit=x"])
def test_a_query_that_is_none_is_refused(program: httpx.Client, query: str) -> None:
    assert program.get(f"/v1/files?{query}").status_code == 400


@pytest.mark.parametrize(
    ("filename", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\x\\a.jsonl", "a.jsonl"),
        ("a\u202eb\r\n.jsonl", "ab.jsonl"),
        ("é" * 300, "é" * 255),
    ],
)
def test_a_filename_is_a_label_only(program: httpx.Client, filename: str, kept: str) -> None:
    made = upload(program, filename=filename)
    assert made.status_code == 200, made.text
    name = made.json()["filename"]
    assert name == kept or "%" in name  # as the client has encoded it
    assert "/" not in name and "\n" not in name
    (on_disk,) = stored()
    assert on_disk == StoredFile.objects.get().storage_name
    assert program.get(f"/v1/files/{made.json()['id']}/content").status_code == 200


def form(*parts: tuple[str, bytes], boundary: bytes = b"xyz", end: bytes = b"--xyz--\r\n") -> bytes:
    written = b""
    for disposition, value in parts:
        head = f"Content-Disposition: form-data; {disposition}\r\n\r\n".encode()
        written += b"--" + boundary + b"\r\n" + head + value + b"\r\n"
    return written + end


FILE = ('name="file"; filename="a"', CONTENT)
PURPOSE = ('name="purpose"', b"batch")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(FILE), "purpose"),
        (form(PURPOSE), "file"),
        (form(('name="purpose"', b"assistants"), FILE), "purpose"),
        (form(('name="purpose"', b"b" * 1000), FILE), "purpose"),
        (form(PURPOSE, ('name="file"; filename="a"', b"")), "file"),
        (form(PURPOSE, FILE, FILE), "file"),
        (form(PURPOSE, ('name="model"', b"x"), FILE), "model"),
        (form(PURPOSE, *[('name="expires_after[anchor]"', b"created_at")] * 8, FILE), None),
        (form(PURPOSE, ('name="expires_after[seconds]"', b"3600"), FILE), "expires_after[anchor]"),
        (
            form(
                PURPOSE, ('name="expires_after[anchor]"', b"created_at"), ('name="expires_after[seconds]"', b"1"), FILE
            ),
            "expires_after[seconds]",
        ),
        (form(PURPOSE, FILE, end=b""), None),
        (form(PURPOSE, FILE)[:-30], None),
        (b"no form", None),
        (b"", None),
    ],
)
def test_a_form_that_is_none_is_refused_and_leaves_nothing(
    program: httpx.Client, body: bytes, param: str | None
) -> None:
    answer = program.post("/v1/files", content=body, headers={"content-type": "multipart/form-data; boundary=xyz"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    eventually(lambda: stored() == [])
    assert not StoredFile.objects.exists()


@pytest.mark.parametrize(
    "content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 300, ""]
)
def test_what_is_no_form_at_all_is_refused(program: httpx.Client, content_type: str) -> None:
    answer = program.post("/v1/files", content=b"{}", headers={"content-type": content_type})
    assert answer.status_code == 400


def test_files_are_bounded_in_bytes_lines_and_line_length(program: httpx.Client, settings: Any) -> None:
    settings.FILES_MAX_BYTES = 3 * 1024 * 1024
    settings.BATCH_MAX_LINES = 100
    settings.BATCH_MAX_LINE_BYTES = 1024 * 1024 + 10
    long = b"x" * (1024 * 1024 + 10)
    assert upload(program, long + b"\n" + long + b"\n" + CONTENT * 98).status_code == 200
    for content, status in (
        ((long + b"\n") * 3, 413),
        (b"x" + long, 400),
        (CONTENT + b"x" + long, 400),
        (CONTENT * 101, 400),
    ):
        answer = upload(program, content)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, "file")
    eventually(lambda: len(stored()) == 1)
    assert StoredFile.objects.count() == 1


def test_a_tenant_stores_so_much_and_no_more(
    program: httpx.Client, gateway: Gateway, globex_key: str, settings: Any
) -> None:
    settings.FILES_MAX_TENANT_BYTES = 2 * len(CONTENT)
    ids = [upload(program).json()["id"] for _ in range(2)]
    refused = upload(program)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "storage_full")
    assert upload(gateway.http(globex_key)).status_code == 200
    program.delete(f"/v1/files/{ids[0]}")
    assert upload(program).status_code == 200


def test_two_uploads_do_not_both_get_the_last_of_the_room(program: httpx.Client, acme: Tenant, settings: Any) -> None:
    drafts = [storage.Draft(), storage.Draft()]
    for draft in drafts:
        draft.write(CONTENT)
    settings.FILES_MAX_TENANT_BYTES = len(CONTENT)

    def keep(draft: storage.Draft) -> StoredFile:
        purpose = StoredFile.Purpose.BATCH
        return services.keep_file(
            draft, tenant="acme", key_prefix="", purpose=purpose, filename="a", expires_after_s=None
        )

    assert keep(drafts[0]).size == len(CONTENT)
    with pytest.raises(TooManyFiles):
        keep(drafts[1])
    assert stored() == [drafts[0].storage_name]


def test_a_client_that_goes_away_leaves_nothing(program: httpx.Client) -> None:
    begun = threading.Event()

    def body() -> Iterator[bytes]:
        yield form(PURPOSE, end=b"") + b'--xyz\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
        yield b"x" * 2 * 1024 * 1024
        eventually(lambda: stored() != [])
        begun.set()
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        program.post("/v1/files", content=body(), headers={"content-type": "multipart/form-data; boundary=xyz"})
    assert begun.wait(PATIENCE_S)
    eventually(lambda: stored() == [])
    assert not StoredFile.objects.exists()


def test_a_file_goes_when_it_expires(program: httpx.Client) -> None:
    made = upload(program, fields={"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json()
    assert made["expires_at"] - made["created_at"] == 3600
    StoredFile.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert program.get(f"/v1/files/{made['id']}").status_code == 404
    assert program.get("/v1/files").json()["data"] == []
    cleaning.clean_up()
    assert stored() == [] and not StoredFile.objects.exists()


def test_what_killed_processes_left_is_cleaned_up_after_a_day(
    program: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(program)
    storage.Draft().write(b"half a file")
    whole = storage.Draft()
    whole.keep()
    cleaning.clean_up()
    assert len(stored()) == 3
    monkeypatch.setattr(storage, "ORPHAN_AFTER_S", -1.0)
    cleaning.clean_up()
    assert stored() == [StoredFile.objects.get().storage_name]


ROUTES: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "show": lambda program, file: program.get(f"/v1/files/{file}"),
    "content": lambda program, file: program.get(f"/v1/files/{file}/content"),
    "delete": lambda program, file: program.delete(f"/v1/files/{file}"),
    "list after": lambda program, file: program.get(f"/v1/files?after={file}"),
}


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES.keys())
def test_acmes_file_is_to_globex_what_nobodys_is(
    program: httpx.Client, gateway: Gateway, globex_key: str, ask: Callable[[httpx.Client, str], httpx.Response]
) -> None:
    file = upload(program).json()["id"]
    charlies = gateway.http(globex_key)
    for nobodys in ("file-" + "0" * 32, "x%00y"):
        theirs, none = ask(charlies, file), ask(charlies, nobodys)
        assert theirs.status_code == none.status_code == 404
        assert theirs.text.replace(file, "") == none.text.replace(nobodys, "").replace("x\\u0000y", "")
    assert charlies.get("/v1/files").json()["data"] == []
    assert program.get(f"/v1/files/{file}/content").content == CONTENT


def test_a_key_for_some_personas_sees_its_own_files_only(program: httpx.Client, gateway: Gateway, acme: Tenant) -> None:
    file = upload(program).json()["id"]
    restricted = gateway.http(persona_services.issue_api_key(tenant=acme, name="one", personas=["support"])[1])
    assert [ask(restricted, file).status_code for ask in ROUTES.values()] == [404] * len(ROUTES)
    own = upload(restricted).json()["id"]
    assert [listed["id"] for listed in restricted.get("/v1/files").json()["data"]] == [own]


@pytest.mark.parametrize("scopes", [["read"], ["manage"]])
def test_a_key_without_the_inference_scope_is_a_403(
    program: httpx.Client, gateway: Gateway, acme: Tenant, scopes: list[str]
) -> None:
    file = upload(program).json()["id"]
    other = gateway.http(persona_services.issue_api_key(tenant=acme, name="other", scopes=scopes)[1])
    answers = [upload(other), other.get("/v1/files"), *(ask(other, file) for ask in ROUTES.values())]
    assert {(answer.status_code, json.loads(answer.text)["error"]["code"]) for answer in answers} == {
        (403, "insufficient_scope")
    }
    assert StoredFile.objects.count() == 1
