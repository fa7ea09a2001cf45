"""Other tools' files over the API: previewed, asked about, stored, refused, and exported again."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart

from personas import vector_files, vector_imports
from personas.models import SteeringVector, Tenant
from steerguard.vectors import SteeringVector as VectorContent
from steerguard.vectors import read_vector, write_vector
from steerguard.vectors.importers import ImportRequest, Source, import_vector
from tests.conftest import MakeVector
from tests.personas.api.conftest import Api, problem
from tests.steerguard.vectors.importers import tools

VECTORS = "tenants/acme/vectors"
PREVIEW = f"{VECTORS}/preview"
SIZE, LAYERS = 8, 4
MODEL = {"hidden_size": "8", "num_layers": "4"}
ROWS = {1: np.arange(1, 9, dtype=np.float32), 2: np.ones(SIZE, np.float32)}


def send(api: Api, path: str, data: bytes, said: Mapping[str, str] = MODEL, name: str = "calm.gguf") -> Any:
    fields = {**said, "file": SimpleUploadedFile(name, data)}
    return api.post(path, encode_multipart(BOUNDARY, fields), content_type=MULTIPART_CONTENT)


def test_a_preview_says_what_is_understood_and_stores_nothing(editor: Api, acme: Tenant) -> None:
    answer = send(editor, PREVIEW, tools.llama_cpp(ROWS))
    assert answer.status_code == 200
    said = answer.json()
    assert (said["format"], said["blocks"], said["hidden_size"]) == ("llama.cpp", [0, 1], SIZE)
    assert (said["name"], said["norm"], said["is_stored"]) == ("calm", "raw", False)
    assert "index=applied" in said["warnings"][0]
    assert not SteeringVector.objects.exists()
    assert not list(vector_files.path_of("0" * 64).parent.glob(f"{said['digest']}*"))


def test_an_upload_stores_what_the_preview_said(editor: Api, viewer: Api, acme: Tenant) -> None:
    said = send(editor, PREVIEW, tools.repeng(ROWS)).json()
    with_model = {**MODEL, "base_model": "tiny", "description": "Calm"}
    stored = send(editor, VECTORS, tools.repeng(ROWS), with_model)
    assert stored.status_code == 201
    assert (stored.json()["digest"], stored.json()["layers"]) == (said["digest"], [1, 2])
    assert (stored.json()["base_model"], stored.json()["name"]) == ("tiny", "calm")
    source = stored.json()["source"]
    assert (source["source_format"], source["source_file"], source["num_layers"]) == ("repeng", "calm.gguf", "4")
    assert send(editor, PREVIEW, tools.repeng(ROWS)).json()["is_stored"] is True
    assert send(editor, VECTORS, tools.easysteer(ROWS), with_model).status_code == 200, "the same numbers"

    exported = viewer.get(f"{VECTORS}/{said['digest']}/file?format=repeng")
    assert exported.headers["Content-Disposition"].endswith('.gguf"')
    again = import_vector(Source(exported.content), ImportRequest(hidden_size=SIZE, num_layers=LAYERS))
    assert again.vector.digest == said["digest"]
    canonical = viewer.get(f"{VECTORS}/{said['digest']}/file")
    assert read_vector(canonical.content).provenance["source_format"] == "easysteer", "what was said last"


@pytest.mark.parametrize("path", [PREVIEW, VECTORS])
@pytest.mark.parametrize(
    ("data", "said", "field", "expected"),
    [
        (tools.npy(ROWS[1]), MODEL, "layer", "a 0-based block, 0 to 3"),
        (tools.npy(np.ones((3, SIZE))), MODEL, "rows", "blocks or hidden_states"),
        (tools.repeng(ROWS), {}, "hidden_size", "the model's"),
        (tools.repeng(ROWS), {"hidden_size": "8"}, "num_layers", "the model's decoder blocks"),
        (tools.repeng(ROWS), {**MODEL, "layer": "4"}, "layer", "a whole number from 0 to 3"),
        (tools.repeng(ROWS), {**MODEL, "format": "npy"}, "file", "file with npy, for format npy"),
        (tools.repeng(ROWS), {**MODEL, "hidden_size": "9"}, "file", "direction.1 with shape [9] (hidden_size)"),
        (tools.repeng(ROWS)[:-50], MODEL, "file", "tensor 'direction.1' with 32 bytes"),
        (b"\x80\x04}.", MODEL, "file", "file with one of safetensors, GGUF, torch.save archive, npy, JSON"),
    ],
)
def test_what_is_open_or_wrong_is_a_422_at_its_field(
    path: str, data: bytes, said: dict[str, str], field: str, expected: str, editor: Api, acme: Tenant
) -> None:
    found = problem(send(editor, path, data, {**said, "base_model": "tiny"}), 422, field)
    assert found["errors"][0]["expected"] == expected
    assert not SteeringVector.objects.exists()


def test_a_question_can_be_answered(editor: Api, acme: Tenant) -> None:
    said = {**MODEL, "layer": "2", "base_model": "tiny", "name": "asked"}
    assert send(editor, VECTORS, tools.npy(ROWS[1]), said, "x.npy").json()["layers"] == [2]
    query = "hidden_size=8&num_layers=4&layer=3&base_model=tiny&name=asked"
    raw = editor.post(f"{VECTORS}?{query}", tools.npy(ROWS[1]), content_type="application/octet-stream")
    assert (raw.status_code, raw.json()["layers"]) == (201, [3])


@pytest.mark.parametrize(
    "said",
    [
        {"layer": "-1"},
        {"layer": "1.0"},
        {"layer": "٣"},
        {"hidden_size": "99999999999"},
        {"format": "gguf"},
        {"index": "left"},
        {"rows": "1"},
        {"zero_rows": ""},
    ],
)
def test_fields_are_checked_before_the_file_is_read(said: dict[str, str], editor: Api, acme: Tenant) -> None:
    problem(send(editor, PREVIEW, tools.npy(ROWS[1]), {**MODEL, **said}), 400, *said)


@pytest.mark.timeout(900)  # for torch to be imported, on a machine that is busy with other things
def test_a_pt_file_is_read_without_torch_in_this_process(editor: Api, acme: Tenant) -> None:
    data = tools.saved(torch.from_numpy(tools.matrix(ROWS, rows=5)))
    said = {**MODEL, "zero_rows": "skip", "base_model": "tiny", "name": "persona"}
    answer = send(editor, VECTORS, data, said, "evil_response_avg_diff.pt")
    assert answer.status_code == 201, answer.content
    assert (answer.json()["layers"], answer.json()["source"]["source_format"]) == ([0, 1], "persona-vectors")

    class Command:
        def __reduce__(self) -> tuple[Any, ...]:
            return (print, ("ran",))

    found = problem(send(editor, PREVIEW, tools.saved(Command()), MODEL, "x.pt"), 422, "file")
    assert "asks for" in found["errors"][0]["found"]


def test_a_name_that_is_no_skill_is_asked_for(editor: Api, acme: Tenant) -> None:
    with_model = {**MODEL, "base_model": "tiny"}
    problem(send(editor, VECTORS, tools.repeng(ROWS), with_model, "Calm v2.gguf"), 400, "name")
    assert send(editor, VECTORS, tools.repeng(ROWS), {**with_model, "name": "calm"}, "Calm v2.gguf").status_code == 201
    problem(send(editor, VECTORS, tools.repeng(ROWS), MODEL), 400, "base_model")


def test_our_own_files_are_held_against_the_model_that_is_named(editor: Api, acme: Tenant) -> None:
    own = write_vector(VectorContent(ROWS, SIZE, "tiny", "calm"))
    assert send(editor, PREVIEW, own, {}).json()["format"] == "canonical"
    problem(send(editor, PREVIEW, own, {"hidden_size": "9"}), 422, "file")
    problem(send(editor, PREVIEW, own, {"num_layers": "2"}), 422, "file")


def test_llama_cpp_is_given_no_block_0(editor: Api, viewer: Api, acme: Tenant, make_vector: MakeVector) -> None:
    first, later = make_vector(acme, "first", layers=(0, 3)), make_vector(acme, "later", layers=(3,), seed=2)
    problem(viewer.get(f"{VECTORS}/{first.digest}/file?format=llama.cpp"), 400, "format")
    problem(viewer.get(f"{VECTORS}/{first.digest}/file?format=cast"), 400, "format")
    assert viewer.get(f"{VECTORS}/{later.digest}/file?format=llama.cpp").content.startswith(b"GGUF")


def test_the_same_numbers_carry_what_each_tenant_says_of_them(
    editor: Api, outsider: Api, acme: Tenant, globex: Tenant
) -> None:
    """Although they are kept once for everybody."""
    said = {**MODEL, "base_model": "tiny"}
    digest = send(editor, VECTORS, tools.repeng(ROWS), said, "acme-plan.gguf").json()["digest"]
    theirs = "tenants/globex/vectors"
    send(outsider, theirs, tools.easysteer(ROWS), {**said, "name": "ours"}, "ours.gguf")
    got = read_vector(outsider.get(f"{theirs}/{digest}/file").content)
    assert (got.name, got.provenance["source_file"]) == ("ours", "ours.gguf")
    assert read_vector(editor.get(f"{VECTORS}/{digest}/file").content).provenance["source_file"] == "acme-plan.gguf"


def test_no_more_files_are_read_at_once_than_may(editor: Api, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_imports, "_turns", threading.BoundedSemaphore(1))
    monkeypatch.setattr(vector_imports, "WAIT_S", 0.0)
    with vector_imports._turns:
        problem(send(editor, PREVIEW, tools.repeng(ROWS)), 503, "file")
    assert send(editor, PREVIEW, tools.repeng(ROWS)).status_code == 200


def test_a_reader_that_dies_is_a_refusal(editor: Api, acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steerguard.vectors.importers.isolated.MODULE", "steerguard.no_such_module")
    found = problem(send(editor, PREVIEW, tools.repeng(ROWS)), 422, "file")
    assert "no_such_module" not in str(found)
