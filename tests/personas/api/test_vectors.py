"""Vectors over the API: files go in and come out the same, and nothing else goes in."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from personas import vector_files
from personas.models import SteeringVector, Tenant
from steerguard.vectors import write_vector
from steerguard.vectors.importers import MAX_SOURCE_BYTES
from tests.conftest import MakeVector, random_vector
from tests.personas.api.conftest import Api, Things, problem

VECTORS = "tenants/acme/vectors"
FILE = "application/octet-stream"


def file_of(seed: int = 3, name: str = "calm") -> bytes:
    return write_vector(random_vector(name, seed=seed))


def form(**fields: Any) -> bytes:
    return encode_multipart(BOUNDARY, fields)


def upload(name: str, data: bytes) -> Any:
    from django.core.files.uploadedfile import SimpleUploadedFile

    return SimpleUploadedFile(name, data)


def test_a_file_goes_in_and_comes_out_the_same(editor: Api, viewer: Api, acme: Tenant) -> None:
    data = file_of()
    made = editor.post(f"{VECTORS}?description=Calm&recommended_alpha=1.5", data, content_type=FILE)
    assert made.status_code == 201
    digest = made.json()["digest"]
    assert made.json()["name"] == "calm"
    assert made.json()["recommended_alpha"] == 1.5
    assert not made.json()["is_shared"]
    got = viewer.get(f"{VECTORS}/{digest}/file")
    assert (got.content, got.headers["Content-Type"]) == (data, FILE)
    assert got.headers["Content-Disposition"] == f'attachment; filename="calm-{digest[:12]}.safetensors"'

    again = editor.post(
        VECTORS, form(file=upload("x.safetensors", data), name="calmer"), content_type=MULTIPART_CONTENT
    )
    assert (again.status_code, again.json()["name"]) == (200, "calmer")
    assert SteeringVector.objects.count() == 1

    said = editor.patch(f"{VECTORS}/{digest}", {"recommended_alpha": None, "recommended_positions": "response"})
    assert (said.json()["recommended_alpha"], said.json()["recommended_positions"]) == (None, "response")
    assert said.json()["name"] == "calmer"
    assert editor.delete(f"{VECTORS}/{digest}").status_code == 204
    problem(viewer.get(f"{VECTORS}/{digest}"), 404)


def test_a_form_that_is_sent_twice_under_one_key_stores_once(editor: Api, acme: Tenant) -> None:
    first = editor.post(
        VECTORS, form(file=upload("x", file_of())), content_type=MULTIPART_CONTENT, idempotency_key="v1"
    )
    again = editor.post(
        VECTORS,
        encode_multipart("AnotherBoundary", {"file": upload("x", file_of())}),
        content_type="multipart/form-data; boundary=AnotherBoundary",
        idempotency_key="v1",
    )
    assert (again.status_code, again.content) == (201, first.content)
    other = form(file=upload("x", file_of(seed=4)))
    problem(editor.post(VECTORS, other, content_type=MULTIPART_CONTENT, idempotency_key="v1"), 422)


@pytest.mark.parametrize(
    ("data", "kind", "status", "fields"),
    [
        (b"", FILE, 422, ["file"]),
        (b"not safetensors", FILE, 422, ["file"]),
        (struct.pack("<Q", 2**63), FILE, 422, ["file"]),
        (file_of()[:-1], FILE, 422, ["file"]),
        (b"\x80\x04}.", FILE, 422, ["file"]),  # a pickle
        (b"x" * (MAX_SOURCE_BYTES + 1), FILE, 413, []),
        (b"{}", "application/json", 415, []),
        (form(name="calm"), MULTIPART_CONTENT, 400, ["file"]),
        (form(file="text"), MULTIPART_CONTENT, 400, ["file"]),
        (form(file=upload("x", file_of()), recommended_alpha="nan"), MULTIPART_CONTENT, 400, ["recommended_alpha"]),
        (form(file=upload("x", file_of()), name="Not A Slug"), MULTIPART_CONTENT, 400, ["name"]),
        (form(file=upload("x", file_of()), tenant="globex"), MULTIPART_CONTENT, 400, ["tenant"]),
        (b"x" * (MAX_SOURCE_BYTES + 100_000), MULTIPART_CONTENT, 413, []),
        (b"nonsense", MULTIPART_CONTENT, 400, ["file"]),
        (b"nonsense", "multipart/form-data", 400, []),
    ],
)
def test_what_is_no_vector_is_refused(
    editor: Api, data: bytes, kind: str, status: int, fields: list[str], acme: Tenant
) -> None:
    problem(editor.post(VECTORS, data, content_type=kind), status, *fields)
    assert not SteeringVector.objects.exists()


def test_shared_ones_are_listed_and_stay_the_operators(editor: Api, viewer: Api, make_vector: MakeVector) -> None:
    shared = make_vector(None, "bright", seed=8)
    listed = viewer.get(VECTORS).json()["results"]
    assert [(one["name"], one["is_shared"]) for one in listed] == [("bright", True)]
    for answer in (
        editor.patch(f"{VECTORS}/{shared.digest}", {"name": "mine"}),
        editor.delete(f"{VECTORS}/{shared.digest}"),
    ):
        problem(answer, 403)
    own = editor.post(f"{VECTORS}?name=own", vector_files.path_of(shared.digest).read_bytes(), content_type=FILE)
    assert own.status_code == 201
    assert [one["name"] for one in viewer.get(VECTORS).json()["results"]] == ["own"]
    assert viewer.get(f"{VECTORS}?shared=true").json()["results"] == []


def test_one_in_use_stays(editor: Api, things: Things) -> None:
    problem(editor.delete(f"{VECTORS}/{things.vector.digest}"), 409, "vector")
