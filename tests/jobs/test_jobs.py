"""The job API over HTTP: made, run, watched, cancelled; and nobody else's."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import redis
from aiohttp import web
from django.test import Client
from django.utils import timezone

from jobs import events, services, tasks
from jobs.models import Job
from personas import services as persona_services
from personas.models import ApiKey, Tenant
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway, eventually
from tests.inference.gateway.stub_engine import StubEngine, chunk, completes, dies, hello, refuses, says, streams
from tests.jobs.conftest import Work
from tests.waiting import PATIENCE_S

ASKED = {"persona": "support", "messages": [{"role": "user", "content": "Hello"}]}


def parse(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Id, type and data of each event."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


def text_of(told: list[tuple[str, str, dict[str, Any]]]) -> str:
    """What a watcher has in the end."""
    text = ""
    for _, kind, data in told:
        text = "" if kind == "restarted" else text + data["text"] if kind == "delta" else text
    return text


def make(program: httpx.Client, asked: dict[str, Any] = ASKED, idempotency_key: str | None = None) -> dict[str, Any]:
    headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
    answer = program.post("/v1/jobs", json=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_a_job_is_made_run_and_read(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    made = make(program)
    assert made["state"] == "queued" and made["stream_url"] == f"/events/{made['id']}"
    assert (made["model"], made["revision"]) == ("support", "acme/support@1")
    work().join(PATIENCE_S)
    job = program.get(f"/v1/jobs/{made['id']}").json()
    assert (job["state"], job["error"]) == ("succeeded", None)
    assert job["result"]["choices"][0]["message"] == {"role": "assistant", "content": "Hello!"}
    assert job["result"]["choices"][0]["finish_reason"] == "stop"
    assert (job["result"]["object"], job["result"]["model"]) == ("chat.completion", "support")
    assert job["result"]["usage"]["completion_tokens"] == 4
    assert stub.steering["blend"][0]["alpha"] == 1.5
    assert program.get("/v1/jobs").json()["data"] == [job]


def test_a_prompt_is_completed_and_a_list_of_prompts_too(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = completes
    made = make(program, {"adapter": "acme/support", "prompt": ["One", "Two"], "n": 2})
    work().join(PATIENCE_S)
    choices = program.get(f"/v1/jobs/{made['id']}").json()["result"]["choices"]
    assert [choice["text"].split("\n")[-1][-2:] for choice in choices] == [".0", ".1", ".0", ".1"]
    assert stub.paths == ["/v1/completions"]


def test_events_are_replayed_from_every_position(program: httpx.Client, work: Work) -> None:
    url = make(program)["stream_url"]
    work().join(PATIENCE_S)
    told = parse(program.get(url).text)
    assert [told[0][1], told[1][1], told[-1][1]] == ["queued", "started", "succeeded"]
    assert text_of(told) == told[-1][2]["result"]["choices"][0]["message"]["content"] == "Hello!"
    for position, (event_id, _, _) in enumerate(told[:-1]):
        assert parse(program.get(url, headers={"last-event-id": event_id}).text) == told[position + 1 :]
    assert program.get(url, headers={"last-event-id": told[-1][0]}).status_code == 204


def test_deltas_come_while_the_engine_writes_and_a_cancellation_ends_it(
    program: httpx.Client, stub: StubEngine, work: Work
) -> None:
    stub.does = streams(chunk("Hel"), then="hangs")
    made = make(program)
    running = work()
    with program.stream("GET", made["stream_url"]) as stream:
        seen = ""
        for line in stream.iter_lines():
            seen += line + "\n"
            if "Hel" in line:
                break
        assert program.delete(f"/v1/jobs/{made['id']}").json()["cancel_requested_at"]
        assert stub.aborted.wait(PATIENCE_S)
    running.join(PATIENCE_S)
    assert program.get(f"/v1/jobs/{made['id']}").json()["state"] == "cancelled"
    assert [kind for _, kind, _ in parse(program.get(made["stream_url"]).text)][-2:] == ["delta", "cancelled"]


def test_a_failure_is_told_with_what_came_before_it(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = streams(chunk("Hel"), then="cut")
    made = make(program)
    work().join(PATIENCE_S)
    told = parse(program.get(made["stream_url"]).text)
    assert text_of(told) == "Hel"
    assert told[-1][1] == "failed" and told[-1][2]["error"]["code"] == "engine_error"


def test_an_engine_that_refuses_fails_the_job(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    stub.does = says({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, 400)
    made = make(program)
    work().join(PATIENCE_S)
    job = program.get(f"/v1/jobs/{made['id']}").json()
    assert job["state"] == "failed" and "too long" in job["error"]["message"]


def test_an_engine_that_comes_back_is_waited_for(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    before, stub.does = stub.does, dies()
    made = make(program)
    running = work()
    assert stub.arrived.wait(PATIENCE_S)
    stub.does = before
    running.join(PATIENCE_S)
    assert program.get(f"/v1/jobs/{made['id']}").json()["state"] == "succeeded"


def test_who_waits_for_the_engine_takes_nobody_elses_place(
    program: httpx.Client,
    gateway: Gateway,
    stub: StubEngine,
    work: Work,
    globex: Tenant,
    globex_key: str,
    make_persona: MakePersona,
    settings: Any,
) -> None:
    settings.JOBS_CONCURRENCY = 1
    make_persona(globex, "other", system_prompt="Globex")

    async def busy_for_acme(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        ours = "Acme" in str(body["messages"])
        return await (refuses(503, "full") if ours else hello)(stub, request, body)

    stub.does = busy_for_acme
    waits = [make(program)["id"] for _ in range(3)]
    running = work()
    assert stub.arrived.wait(PATIENCE_S)
    others = gateway.http(globex_key)
    made = make(others, {**ASKED, "persona": "other"})
    work()
    eventually(lambda: others.get(f"/v1/jobs/{made['id']}").json()["state"] == "succeeded")
    assert {program.get(f"/v1/jobs/{job}").json()["state"] for job in waits} <= {"queued", "running"}
    stub.does = hello
    running.join(PATIENCE_S)
    assert {program.get(f"/v1/jobs/{job}").json()["state"] for job in waits} == {"succeeded"}


def test_a_key_that_was_revoked_meanwhile_gets_nothing(
    program: httpx.Client, stub: StubEngine, work: Work, acme: Tenant
) -> None:
    made = make(program)
    persona_services.revoke_api_key(key=ApiKey.objects.get(tenant=acme))
    work().join(PATIENCE_S)
    assert Job.objects.get(public_id=made["id"]).error["code"] == "invalid_api_key"
    assert stub.requests == []


def test_another_worker_begins_the_text_anew(program: httpx.Client, work: Work, valkey: redis.Redis) -> None:
    made = make(program)
    first = services.claim_next("generation", "acme")
    assert first is not None
    events.append(first, "delta", {"index": 0, "text": "half an ans"})
    Job.objects.filter(pk=first.pk).update(lease_until=timezone.now() - services.lease())
    work().join(PATIENCE_S)
    told = parse(program.get(made["stream_url"]).text)
    assert [kind for _, kind, _ in told].count("restarted") == 1
    assert text_of(told) == "Hello!"
    events.append(first, "delta", {"index": 0, "text": "too late"})
    assert parse(program.get(made["stream_url"]).text) == told


def test_a_worker_that_is_told_to_stop_gives_its_job_back(program: httpx.Client, stub: StubEngine, work: Work) -> None:
    answers, stub.does = stub.does, streams(chunk("Hel"), then="hangs")
    made = make(program)
    running = work()
    assert stub.arrived.wait(PATIENCE_S)
    tasks.give_jobs_back()
    running.join(PATIENCE_S)
    stub.does = answers
    work().join(PATIENCE_S)
    assert program.get(f"/v1/jobs/{made['id']}").json()["state"] == "succeeded"


def test_the_end_is_told_from_the_row_where_the_stream_is_gone(
    program: httpx.Client, work: Work, valkey: redis.Redis
) -> None:
    made = make(program)
    work().join(PATIENCE_S)
    valkey.flushall()
    (end,) = parse(program.get(made["stream_url"]).text)
    assert end[1] == "succeeded" and end[2]["result"]["choices"][0]["message"]["content"] == "Hello!"
    assert parse(program.get(made["stream_url"]).text) == [end]


def test_an_idempotency_key_gives_the_same_job(program: httpx.Client) -> None:
    first = make(program, idempotency_key="once")
    assert make(program, idempotency_key="once")["id"] == first["id"]
    other = program.post("/v1/jobs", json={**ASKED, "seed": 1}, headers={"idempotency-key": "once"})
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")


def test_pages_follow_each_other(program: httpx.Client) -> None:
    ids = [make(program)["id"] for _ in range(3)][::-1]
    first = program.get("/v1/jobs?limit=2").json()
    assert ([job["id"] for job in first["data"]], first["has_more"]) == (ids[:2], True)
    rest = program.get(f"/v1/jobs?limit=2&after={ids[1]}").json()
    assert ([job["id"] for job in rest["data"]], rest["has_more"]) == (ids[2:], False)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"prompt": "Hi"}, "model"),
        ({"persona": "support", "model": "support", "prompt": "Hi"}, "model"),
        ({"persona": ["support"], "prompt": "Hi"}, "persona"),
        ({"persona": "support"}, "prompt"),
        ({**ASKED, "prompt": "Hi"}, "prompt"),
        ({"persona": "support", "prompt": {"a": 1}}, "prompt"),
        ({"persona": "support", "messages": "Hi"}, "messages"),
        ({**ASKED, "cache_salt": "x"}, "cache_salt"),
        ({**ASKED, "stream": "yes"}, "stream"),
        ({**ASKED, "n": 1000}, "n"),
        ({**ASKED, "steer_skill": "nothing"}, "steer_skill"),
    ],
)
def test_what_could_not_be_answered_is_refused_at_once(
    program: httpx.Client, asked: dict[str, Any], param: str
) -> None:
    answer = program.post("/v1/jobs", json=asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not Job.objects.exists()


@pytest.mark.parametrize("event_id", ["x", "1", "-1-1", "99999999999999999999-0", "9223372036854775808-0", "٣-٣"])
def test_a_last_event_id_that_is_none_is_refused(program: httpx.Client, event_id: str) -> None:
    answer = program.get(make(program)["stream_url"], headers={b"last-event-id": event_id.encode()})
    assert answer.status_code == 400


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=", "limit=-1", "limit=%D9%A3"])
def test_a_page_size_that_is_none_is_refused(program: httpx.Client, query: str) -> None:
    assert program.get(f"/v1/jobs?{query}").status_code == 400


ROUTES: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "show": lambda program, job: program.get(f"/v1/jobs/{job}"),
    "cancel": lambda program, job: program.delete(f"/v1/jobs/{job}"),
    "watch": lambda program, job: program.get(f"/events/{job}"),
    "watch on": lambda program, job: program.get(f"/events/{job}", headers={"last-event-id": "1-1"}),
    "list after": lambda program, job: program.get(f"/v1/jobs?after={job}"),
}


@pytest.mark.parametrize("ask", ROUTES.values(), ids=ROUTES.keys())
def test_acmes_job_is_to_globex_what_nobodys_is(
    program: httpx.Client,
    gateway: Gateway,
    globex_key: str,
    charlie_client: Client,
    ask: Callable[[httpx.Client, str], httpx.Response],
) -> None:
    job = make(program)["id"]
    charlies = gateway.http(globex_key)
    for nobodys in ("job_" + "0" * 32, "x%00y"):
        theirs, none = ask(charlies, job), ask(charlies, nobodys)
        assert theirs.status_code == none.status_code == 404
        assert theirs.text.replace(job, "") == none.text.replace(nobodys, "").replace("x\\u0000y", "")
    assert charlies.get("/v1/jobs").json()["data"] == []
    assert Job.objects.get(public_id=job).cancel_requested_at is None


def test_a_key_for_some_personas_sees_its_own_jobs_only(program: httpx.Client, gateway: Gateway, acme: Tenant) -> None:
    job = make(program)["id"]
    _, text = persona_services.issue_api_key(tenant=acme, name="one", personas=["support"])
    restricted = gateway.http(text)
    assert [ask(restricted, job).status_code for ask in ROUTES.values()] == [404] * len(ROUTES)
    own = make(restricted)["id"]
    assert [listed["id"] for listed in restricted.get("/v1/jobs").json()["data"]] == [own]


def test_a_member_watches_in_the_browser_and_nobody_elses_page_does(
    program: httpx.Client, gateway: Gateway, work: Work, alice_client: Client, charlie_client: Client
) -> None:
    url = make(program)["stream_url"]
    work().join(PATIENCE_S)

    def watch(browser: Client, **headers: str) -> httpx.Response:
        cookie = f"sessionid={browser.cookies['sessionid'].value}"
        return gateway.http(None).get(url, headers={"cookie": cookie, **headers})

    assert parse(watch(alice_client).text)[-1][1] == "succeeded"
    assert watch(alice_client, origin=gateway.url).status_code == 200
    assert watch(alice_client, origin="https://evil.example").status_code == 403
    assert watch(alice_client, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert watch(charlie_client).status_code == 404
    alice_client.logout()
    assert gateway.http(None).get(url, headers={"cookie": "sessionid=nothing"}).status_code == 401
    assert gateway.http(None).get(url).status_code == 401


def test_watchers_of_one_process_are_bounded(program: httpx.Client, settings: Any) -> None:
    settings.JOBS_MAX_WATCHERS = 1
    url = make(program)["stream_url"]
    with program.stream("GET", url) as stream:
        watching = stream.iter_raw()  # httpx hangs up when the iterator goes
        next(watching)
        refused = program.get(url)
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    eventually(lambda: program.delete(url.replace("/events", "/v1/jobs")).status_code == 200)
    eventually(lambda: program.get(url).status_code == 200)
