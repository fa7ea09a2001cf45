"""/v1/batches: checked, asked, put in order; cancelled, expired, taken over; and nobody else's."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from django.db import connections
from django.utils import timezone

from jobs import cleaning, services, tasks
from jobs.batches import results
from jobs.models import Batch, Job, StoredFile
from personas import services as persona_services
from personas.models import ApiKey, Tenant
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import StubEngine, completes, hangs, hello, refuses, responds, says
from tests.jobs.conftest import Work
from tests.jobs.test_files import upload
from tests.jobs.test_jobs import parse
from tests.waiting import PATIENCE_S

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def data_dir(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path


def line(custom_id: str, *, model: str = "support", url: str = CHAT, **body: Any) -> dict[str, Any]:
    asked = body or {"messages": [{"role": "user", "content": custom_id}]}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": model, **asked}}


def as_file(lines: Iterable[dict[str, Any] | bytes]) -> bytes:
    return b"".join((one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n" for one in lines)


def make(program: httpx.Client, content: bytes, **more: Any) -> dict[str, Any]:
    file = upload(program, content)
    assert file.status_code == 200, file.text
    asked = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h", **more}
    answer = program.post("/v1/batches", json=asked)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def show(program: httpx.Client, batch: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = program.get(f"/v1/batches/{batch['id']}").json()
    return shown


def read(program: httpx.Client, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    return [json.loads(one) for one in program.get(f"/v1/files/{file_id}/content").text.splitlines()]


async def echo(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers with what was asked, the later ones sooner."""
    text = body["messages"][-1]["content"]
    await asyncio.sleep(0.02 if text.endswith(("0", "2", "4", "6", "8")) else 0)
    message = {"role": "assistant", "content": text}
    answer = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    return await says({**answer, "usage": {"prompt_tokens": 1, "completion_tokens": 1}})(stub, request, body)


def asked_of(stub: StubEngine) -> Counter[str]:
    return Counter(body["messages"][-1]["content"] for body in stub.requests)


def test_a_batch_is_answered_in_order(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = echo
    ids = [f"line {number}" for number in range(40)]
    made = make(program, as_file(map(line, ids)), metadata={"campaign": "spring"})
    assert (made["object"], made["status"], made["endpoint"]) == ("batch", "validating", CHAT)
    assert made["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert made["expires_at"] - made["created_at"] == 24 * 3600
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert (batch["status"], batch["errors"], batch["error_file_id"]) == ("completed", None, None)
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert batch["metadata"] == {"campaign": "spring"}
    for moment in ("in_progress_at", "finalizing_at", "completed_at"):
        assert batch[moment] >= batch["created_at"]
    assert batch["failed_at"] is batch["expired_at"] is batch["cancelled_at"] is batch["cancelling_at"] is None
    output = read(program, batch["output_file_id"])
    assert [one["custom_id"] for one in output] == ids
    assert [one["response"]["body"]["choices"][0]["message"]["content"] for one in output] == ids
    assert {one["response"]["status_code"] for one in output} == {200}
    assert {one["response"]["body"]["model"] for one in output} == {"support"}
    assert all(one["response"]["request_id"].startswith("req_") and one["error"] is None for one in output)
    assert len({one["id"] for one in output}) == 40
    assert stub.steering["blend"][0]["alpha"] == 1.5
    file = program.get(f"/v1/files/{batch['output_file_id']}").json()
    assert (file["purpose"], file["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert program.get("/v1/batches").json()["data"] == [batch]
    eventually(lambda: not results.folder_of(made["id"]).exists())


@pytest.mark.parametrize(
    ("endpoint", "body", "does"),
    [
        ("/v1/completions", {"prompt": "Dear"}, completes),
        ("/v1/responses", {"input": "Dear"}, responds),
        ("/v1/embeddings", {"input": "Dear"}, says({"object": "list", "data": [{"embedding": [0.5]}]})),
    ],
)
def test_each_endpoint(
    program: httpx.Client, stub: StubEngine, work: Work, endpoint: str, body: dict[str, Any], does: Any
) -> None:
    stub.does = does
    model = "SmolLM2-135M-Instruct"
    made = make(program, as_file([line("1", url=endpoint, model=model, **body)]), endpoint=endpoint)
    work().join(PATIENCE_S)
    (answer,) = read(program, show(program, made)["output_file_id"])
    assert answer["response"]["body"].keys() & {"choices", "output", "data"}
    assert stub.paths == [endpoint]


def test_what_a_line_gets_wrong_is_that_lines_own(
    program: httpx.Client, stub: StubEngine, work: Work, globex: Tenant, make_persona: MakePersona
) -> None:
    make_persona(globex, "secret", system_prompt="Globex")

    async def picky(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        long = body["messages"][-1]["content"] == "long"
        return await (refuses(400, "too long") if long else hello)(stub, request, body)

    stub.does = picky
    lines = [
        line("1"),
        line("2", model="nobody"),
        line("3", model="globex/secret"),
        line("long"),
        line("5", model="support", messages=[], stream=True),
        line("6", messages="no list", cache_salt="x"),
        line("7"),
    ]
    made = make(program, as_file(lines))
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 7, "completed": 2, "failed": 5}
    assert [one["custom_id"] for one in read(program, batch["output_file_id"])] == ["1", "7"]
    errors = read(program, batch["error_file_id"])
    assert [one["custom_id"] for one in errors] == ["2", "3", "long", "5", "6"]
    assert [one["response"]["status_code"] for one in errors] == [404, 404, 400, 400, 400]
    told = [one["response"]["body"]["error"] for one in errors]
    assert told[0] == program.post(CHAT, json={"model": "nobody", "messages": []}).json()["error"]
    assert told[1]["message"].replace("globex/secret", "nobody") == told[0]["message"]
    assert told[2]["message"] == "too long"
    assert [one["param"] for one in told[3:]] == ["stream", "cache_salt"]


NO_LINES: list[tuple[str, bytes, list[tuple[str, int | None]]]] = [
    ("nothing", b"\n \n", [("empty_file", None)]),
    ("json", as_file([line("1"), b"{", line("2"), b"[]", b'"x"']), [("invalid_json_line", n) for n in (2, 4, 5)]),
    ("numbers", as_file([b'{"custom_id": ' + b"9" * 5000 + b"}"]), [("invalid_json_line", 1)]),
    ("depth", as_file([b"[" * 100_000]), [("invalid_json_line", 1)]),
    ("encoding", as_file([b'{"custom_id": "\xff"}']), [("invalid_json_line", 1)]),
    ("twice", as_file([line("1"), b"", line("2"), line("1")]), [("duplicate_custom_id", 4)]),
    (
        "no id",
        as_file([{**line("1"), "custom_id": 1}, line("x" * 513)]),
        [("invalid_custom_id", 1), ("invalid_custom_id", 2)],
    ),
    ("method", as_file([{**line("1"), "method": "GET"}]), [("invalid_method", 1)]),
    ("url", as_file([line("1", url="/v1/completions")]), [("invalid_url", 1)]),
    ("body", as_file([{**line("1"), "body": "x"}]), [("missing_required_parameter", 1)]),
]


@pytest.mark.parametrize(("content", "errors"), [case[1:] for case in NO_LINES], ids=[case[0] for case in NO_LINES])
def test_a_file_with_lines_that_are_no_requests_fails_as_a_whole(
    program: httpx.Client, stub: StubEngine, work: Work, content: bytes, errors: list[tuple[str, int | None]]
) -> None:
    made = make(program, content)
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert batch["status"] == "failed" and batch["failed_at"]
    assert [(error["code"], error["line"]) for error in batch["errors"]["data"]] == errors
    assert batch["errors"]["object"] == "list" and all(error["message"] for error in batch["errors"]["data"])
    assert batch["output_file_id"] is batch["error_file_id"] is None
    assert stub.requests == []


def test_only_so_many_errors_are_told(program: httpx.Client, work: Work) -> None:
    made = make(program, as_file([b"x"] * 500))
    work().join(PATIENCE_S)
    assert len(show(program, made)["errors"]["data"]) == 100


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"endpoint": None}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": 1}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"output_expires_after": 5}, "output_expires_after"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after[seconds]"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": True}}, "output_expires_after[seconds]"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_what_is_no_batch_is_refused(program: httpx.Client, asked: dict[str, Any], param: str) -> None:
    file = upload(program).json()["id"]
    answer = program.post(
        "/v1/batches", json={"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **asked}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not Batch.objects.exists()


def test_a_batch_goes_on_when_its_file_is_deleted(program: httpx.Client, work: Work) -> None:
    made = make(program, as_file([line("1")]))
    program.delete(f"/v1/files/{made['input_file_id']}")
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert (batch["status"], batch["input_file_id"]) == ("completed", made["input_file_id"])


def test_an_output_file_is_none_to_read_requests_from(program: httpx.Client, work: Work) -> None:
    made = make(program, as_file([line("1")]), output_expires_after={"anchor": "created_at", "seconds": 3600})
    work().join(PATIENCE_S)
    output = show(program, made)["output_file_id"]
    file = program.get(f"/v1/files/{output}").json()
    assert file["expires_at"] - file["created_at"] == 3600
    asked = {"input_file_id": output, "endpoint": CHAT, "completion_window": "24h"}
    assert program.post("/v1/batches", json=asked).status_code == 400


def test_an_idempotency_key_gives_the_same_batch(program: httpx.Client) -> None:
    file = upload(program, as_file([line("1")])).json()["id"]
    asked = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    made = [program.post("/v1/batches", json=asked, headers={"idempotency-key": "a"}).json()["id"] for _ in range(2)]
    assert made[0] == made[1] and Batch.objects.count() == 1
    other = program.post("/v1/batches", json={**asked, "metadata": {}}, headers={"idempotency-key": "a"})
    assert other.status_code == 422


def test_one_that_waits_is_cancelled_at_once(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    made = make(program, as_file([line("1")]))
    batch = program.post(f"/v1/batches/{made['id']}/cancel").json()
    assert batch["status"] == "cancelled" and batch["cancelled_at"]
    assert program.post(f"/v1/batches/{made['id']}/cancel").json() == batch
    work().join(PATIENCE_S)
    assert stub.requests == []


async def first_then_hangs(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers the first ten lines."""
    ready = int(body["messages"][-1]["content"]) < 10
    return await (echo if ready else hangs())(stub, request, body)


def test_one_that_runs_is_cancelled_with_what_has_been_answered(
    program: httpx.Client, stub: StubEngine, work: Work
) -> None:
    stub.does = first_then_hangs
    made = make(program, as_file(line(str(number)) for number in range(20)))
    running = work()
    eventually(lambda: show(program, made)["request_counts"]["completed"] == 10)
    program.post(f"/v1/batches/{made['id']}/cancel")
    assert stub.aborted.wait(PATIENCE_S)
    running.join(PATIENCE_S)
    batch = show(program, made)
    assert batch["status"] == "cancelled" and batch["cancelling_at"] and batch["cancelled_at"]
    assert [one["custom_id"] for one in read(program, batch["output_file_id"])] == [str(n) for n in range(10)]
    errors = read(program, batch["error_file_id"])
    assert [one["custom_id"] for one in errors] == [str(n) for n in range(10, 20)]
    assert {(one["response"], one["error"]["code"]) for one in errors} == {(None, "batch_cancelled")}


def test_one_that_expires_ends_with_what_has_been_answered(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = first_then_hangs
    made = make(program, as_file(line(str(number)) for number in range(12)))
    Batch.objects.update(expires_at=timezone.now() + timedelta(seconds=5))
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert batch["status"] == "expired" and batch["expired_at"] and batch["completed_at"] is None
    output, errors = read(program, batch["output_file_id"]), read(program, batch["error_file_id"])
    answered, not_answered = ([int(one["custom_id"]) for one in lines] for lines in (output, errors))
    assert answered == sorted(answered) and not_answered == sorted(not_answered)
    assert sorted(answered + not_answered) == list(range(12)) and {10, 11} <= set(not_answered)
    assert {one["error"]["code"] for one in errors} == {"batch_expired"}


def test_the_next_worker_goes_on_where_one_was_told_to_stop(
    program: httpx.Client, stub: StubEngine, work: Work
) -> None:
    stub.does = first_then_hangs
    ids = [str(number) for number in range(20)]
    made = make(program, as_file(map(line, ids)))
    running = work()
    eventually(lambda: len(asked_of(stub)) > 10 and show(program, made)["request_counts"]["completed"] == 10)
    tasks.give_jobs_back()
    running.join(PATIENCE_S)
    stub.requests.clear()
    stub.does = echo
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert batch["status"] == "completed"
    assert [one["custom_id"] for one in read(program, batch["output_file_id"])] == ids
    assert set(asked_of(stub)) == set(ids[10:])


def take_over(made: dict[str, Any]) -> bool:
    """As another worker would; not if this one has just renewed its lease."""
    Job.objects.filter(public_id=made["job_id"]).update(lease_until=timezone.now() - services.lease())
    return services.claim_next("batch", "acme") is not None


def test_a_worker_that_lost_its_batch_changes_nothing(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    """It was away for longer than its lease, and doesn't know that another has the batch."""
    go_on = threading.Event()

    async def waits(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        return await echo(stub, request, body)

    stub.does = waits
    made = make(program, as_file(line(str(number)) for number in range(4)))
    running = work()
    eventually(lambda: len(stub.requests) == 4)
    eventually(lambda: take_over(made))
    go_on.set()
    running.join(PATIENCE_S)
    job = Job.objects.get()
    assert (job.state, job.attempts, show(program, made)["status"]) == ("running", 2, "in_progress")
    assert not StoredFile.objects.filter(purpose="batch_output").exists()
    assert (results.folder_of(made["id"]) / results.INPUT).exists()


def test_a_log_that_broke_off_counts_up_to_its_last_whole_record(tmp_path: Path) -> None:
    first = results.Results(tmp_path, 1)
    first.open(4)
    first.append(2, b'{"custom_id":"2"}', succeeded=True)
    first.append(0, b'{"custom_id":"0"}', succeeded=False)
    first.close()
    log = tmp_path / "results-1.log"
    log.write_bytes(log.read_bytes() + b'3 1 {"custom_id":"3"')
    (tmp_path / "results-2.log").write_bytes(b'2 0 {"custom_id":"later"}\n1 1 {"custom_id":"1"}\n\0\0\0\0')
    third = results.Results(tmp_path, 3)
    third.open(4)
    assert [index in third for index in range(4)] == [True, True, True, False]
    assert (third.completed, third.failed) == (2, 1)
    output, errors = third.write_files(lambda index: b"{%d}" % index)
    assert output is not None and errors is not None
    files = [results.storage.path_of(draft.storage_name).read_bytes() for draft in (output, errors)]
    assert files == [b'{"custom_id":"1"}\n{"custom_id":"2"}\n', b'{"custom_id":"0"}\n{3}\n']


def test_a_revoked_key_stops_it(program: httpx.Client, stub: StubEngine, work: Work, acme: Tenant) -> None:
    key = ApiKey.objects.get(tenant=acme)

    def revoke() -> None:
        try:
            persona_services.revoke_api_key(key=key)
        finally:
            connections.close_all()

    async def revokes(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(stub.requests) == 20:
            await asyncio.to_thread(revoke)
        return await echo(stub, request, body)

    stub.does = revokes
    made = make(program, as_file(line(str(number)) for number in range(3000)))
    work().join(PATIENCE_S)
    batch = Batch.objects.get(public_id=made["id"])
    assert batch.job.state == "failed" and batch.job.error["code"] == "invalid_api_key"
    assert batch.completed < 3000
    assert batch.output_file is not None and batch.error_file is not None
    assert batch.completed + batch.failed == 3000


def test_limits_are_waited_for_and_charged_to_the_key(
    program: httpx.Client, gateway: Gateway, stub: StubEngine, work: Work, acme: Tenant
) -> None:
    stub.does = echo
    key = persona_services.issue_api_key(tenant=acme, name="one at a time", limits={"concurrent_requests": 1})[1]
    slow = gateway.http(key)
    made = make(slow, as_file(line(str(number)) for number in range(4)))
    work().join(2 * PATIENCE_S)
    assert show(slow, made)["request_counts"] == {"total": 4, "completed": 4, "failed": 0}


def test_an_engine_that_fails_is_asked_again_and_not_for_ever(
    program: httpx.Client, stub: StubEngine, work: Work
) -> None:
    async def fails(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text = body["messages"][-1]["content"]
        broken = text == "always" or (text == "once" and asked_of(stub)["once"] == 1)
        return await (refuses(500, "CUDA error") if broken else echo)(stub, request, body)

    stub.does = fails
    made = make(program, as_file([line("once"), line("always"), line("never")]))
    work().join(PATIENCE_S)
    batch = show(program, made)
    assert [one["custom_id"] for one in read(program, batch["output_file_id"])] == ["once", "never"]
    (error,) = read(program, batch["error_file_id"])
    assert (error["custom_id"], error["response"]["status_code"]) == ("always", 502)


def test_another_tenants_job_does_not_wait_for_a_batch(
    program: httpx.Client,
    gateway: Gateway,
    stub: StubEngine,
    work: Work,
    globex: Tenant,
    globex_key: str,
    make_persona: MakePersona,
    settings: Any,
) -> None:
    settings.JOBS_CONCURRENCY = 2
    settings.JOBS_TENANT_CONCURRENCY = 2
    make_persona(globex, "other", system_prompt="Globex")
    stub.does = completes_or(echo)
    made = make(program, as_file(line(str(number)) for number in range(5000)))
    running = work()
    eventually(lambda: len(stub.requests) > 10)
    others = gateway.http(globex_key)
    job = others.post("/v1/jobs", json={"model": "other", "prompt": "Hi", "use_beam_search": True}).json()
    work()
    eventually(lambda: others.get(f"/v1/jobs/{job['id']}").json()["state"] == "succeeded")
    assert show(program, made)["status"] == "in_progress"
    program.post(f"/v1/batches/{made['id']}/cancel")
    running.join(PATIENCE_S)


def completes_or(other: Any) -> Any:
    async def answer(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await (completes if "prompt" in body else other)(stub, request, body)

    return answer


def test_progress_is_told_as_events_and_on_the_job(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = first_then_hangs
    made = make(program, as_file(line(str(number)) for number in range(20)))
    running = work()
    eventually(lambda: program.get(f"/v1/jobs/{made['job_id']}").json()["progress"]["done"] == 10)
    progress = program.get(f"/v1/jobs/{made['job_id']}").json()["progress"]
    assert progress["total"] == 20 and progress["rate_per_s"] > 0 and progress["seconds_left"] > 0
    assert program.delete(f"/v1/jobs/{made['job_id']}").status_code == 200
    running.join(PATIENCE_S)
    told = parse(program.get(made["stream_url"]).text)
    kinds = [kind for _, kind, _ in told]
    assert (kinds[:2], kinds[-1]) == (["queued", "started"], "cancelled")
    done = [data["done"] for _, kind, data in told if kind == "progress"]
    assert done == sorted(done) and done[-1] == 10
    assert told[-1][2]["result"]["output_file_id"] == show(program, made)["output_file_id"]


def test_what_killed_processes_left_is_cleaned_up(
    program: httpx.Client, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "ORPHAN_AFTER_S", -1.0)
    made = make(program, as_file([line("1")]))
    results.folder_of("batch_nobodys").mkdir(parents=True)
    cleaning.clean_up()
    assert results.folder_of(made["id"]).exists() and not results.folder_of("batch_nobodys").exists()
    work().join(PATIENCE_S)
    Job.objects.update(finished_at=timezone.now() - timedelta(days=31))
    cleaning.clean_up()
    assert not Batch.objects.exists()


ROUTES: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "show": lambda program, batch: program.get(f"/v1/batches/{batch}"),
    "cancel": lambda program, batch: program.post(f"/v1/batches/{batch}/cancel"),
    "list after": lambda program, batch: program.get(f"/v1/batches?after={batch}"),
}


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES.keys())
def test_acmes_batch_is_to_globex_what_nobodys_is(
    program: httpx.Client, gateway: Gateway, globex_key: str, ask: Callable[[httpx.Client, str], httpx.Response]
) -> None:
    batch = make(program, as_file([line("1")]))["id"]
    charlies = gateway.http(globex_key)
    for nobodys in ("batch_" + "0" * 32, "x%00y"):
        theirs, none = ask(charlies, batch), ask(charlies, nobodys)
        assert theirs.status_code == none.status_code == 404
        assert theirs.text.replace(batch, "") == none.text.replace(nobodys, "").replace("x\\u0000y", "")
    assert charlies.get("/v1/batches").json()["data"] == []
    assert Job.objects.get().cancel_requested_at is None


def test_acmes_file_is_to_globexs_batch_what_nobodys_is(
    program: httpx.Client, gateway: Gateway, globex_key: str
) -> None:
    file, nobodys = upload(program, as_file([line("1")])).json()["id"], "file-" + "0" * 32
    asked = {"endpoint": CHAT, "completion_window": "24h"}
    theirs, none = (
        gateway.http(globex_key).post("/v1/batches", json={"input_file_id": name, **asked}) for name in (file, nobodys)
    )
    assert theirs.status_code == none.status_code == 404
    assert theirs.text.replace(file, "") == none.text.replace(nobodys, "")
    assert not Batch.objects.exists()


def test_a_key_for_some_personas_sees_its_own_batches_only(
    program: httpx.Client, gateway: Gateway, acme: Tenant, work: Work
) -> None:
    batch = make(program, as_file([line("1")]))["id"]
    restricted = gateway.http(persona_services.issue_api_key(tenant=acme, name="one", personas=["support"])[1])
    assert [ask(restricted, batch).status_code for ask in ROUTES.values()] == [404] * len(ROUTES)
    own = make(restricted, as_file([line("1")]))
    assert [listed["id"] for listed in restricted.get("/v1/batches").json()["data"]] == [own["id"]]
    work().join(PATIENCE_S)
    assert len(read(restricted, show(restricted, own)["output_file_id"])) == 1


@pytest.mark.parametrize("scopes", [["read"], ["manage"]])
def test_a_key_without_the_inference_scope_is_a_403(
    program: httpx.Client, gateway: Gateway, acme: Tenant, scopes: list[str]
) -> None:
    batch = make(program, as_file([line("1")]))
    other = gateway.http(persona_services.issue_api_key(tenant=acme, name="other", scopes=scopes)[1])
    asked = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    answers = [other.post("/v1/batches", json=asked), other.get("/v1/batches")]
    answers += [ask(other, batch["id"]) for ask in ROUTES.values()]
    assert {answer.status_code for answer in answers} == {403}
    assert Batch.objects.count() == 1
