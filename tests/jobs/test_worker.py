"""Real Celery workers, killed in the middle of their work: nothing is lost, nothing is doubled.

KILLS=100 kills as many of them, which takes a quarter of an hour or more; without it a few are killed.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from aiohttp import web

from jobs import services
from jobs.models import Job
from personas import services as persona_services
from personas.models import Persona
from tests.conftest import MakePersona
from tests.inference.gateway.conftest import Gateway
from tests.inference.gateway.stub_engine import DONE, StubEngine, chunk, streams, usage_chunk
from tests.jobs.test_batches import as_file, asked_of, line, read, show
from tests.jobs.test_batches import make as make_batch
from tests.jobs.test_jobs import make, parse, text_of
from tests.jobs.workers import Workers, workers_of_their_own
from tests.waiting import eventually

KILLS = int(os.environ.get("KILLS", "3"))
TENANTS = 20
WITHIN_S = 900.0 + 60.0 * KILLS  # on a machine that is busy with something else

pytestmark = [pytest.mark.slow, pytest.mark.timeout(WITHIN_S + 60)]


@pytest.fixture
def workers(transactional_db: None, valkey: redis.Redis, settings: Any, tmp_path: Path) -> Iterator[Workers]:
    settings.DATA_DIR = tmp_path
    with workers_of_their_own() as workers:
        yield workers


def is_done(program: httpx.Client, job: dict[str, Any]) -> bool:
    services.sweep()  # as the schedule does
    return bool(program.get(f"/v1/jobs/{job['id']}").json()["state"] == "succeeded")


def has_arrived(stub: StubEngine) -> bool:
    services.sweep()  # what is sent to an emptied Valkey before a worker has opened its queue is lost
    return stub.arrived.is_set()


def test_the_job_of_a_killed_worker_is_done_by_the_next(
    program: httpx.Client, stub: StubEngine, workers: Workers
) -> None:
    answers, stub.does = stub.does, streams(chunk("half an ans"), then="hangs")
    made = make(program)
    first = workers.start()
    eventually(lambda: has_arrived(stub), WITHIN_S)
    stub.does = answers
    workers.kill(first)
    workers.start()
    eventually(lambda: is_done(program, made), WITHIN_S)
    told = parse(program.get(made["stream_url"]).text)
    assert [kind for _, kind, _ in told].count("restarted") == 1
    assert text_of(told) == "Hello!"


def test_a_worker_that_is_told_to_stop_gives_its_jobs_back_before_it_ends(
    program: httpx.Client, stub: StubEngine, workers: Workers
) -> None:
    stub.does = streams(chunk("half an ans"), then="hangs")
    make(program)
    worker = workers.start()
    eventually(lambda: has_arrived(stub), WITHIN_S)
    assert workers.stop(worker) == 0
    assert services.claim_next("generation", "acme") is not None


async def echo(stub: StubEngine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers with what was asked, in pieces or whole, and takes its time."""
    text = body["messages"][-1]["content"]
    await asyncio.sleep(random.uniform(0, 0.2))
    if body.get("stream"):
        pieces = [chunk(text[at : at + 3]) for at in range(0, len(text), 3)]
        return await streams(*pieces, chunk("", "stop"), usage_chunk(), DONE)(stub, request, body)
    message = {"role": "assistant", "content": text}
    answer = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    headers = {"x-steerguard-blend": "b" * 64} if "vllm_xargs" in body else {}
    return web.json_response({**answer, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}, headers=headers)


def kill_until(workers: Workers, stub: StubEngine, is_over: Callable[[], bool]) -> int:
    """Two are at work; one or the other is killed at some moment of it, and another put in its place."""
    chance, killed = random.Random(11), 0
    workers.start()
    workers.start()
    next_kill = chance.randint(1, 40)  # requests from the beginning on: however slow the machine is, there is work
    deadline_s = time.monotonic() + WITHIN_S
    while not is_over():
        assert time.monotonic() < deadline_s, f"not done after {killed} kills"
        services.sweep()  # as the schedule does
        time.sleep(chance.uniform(0, 0.2))
        if killed < KILLS and len(stub.requests) >= next_kill:
            workers.kill(chance.choice(workers.running))
            workers.start()
            killed += 1
            next_kill = len(stub.requests) + chance.randint(1, 40)
    return killed


def ask(text: str) -> dict[str, Any]:
    return {"persona": "support", "messages": [{"role": "user", "content": text}]}


def test_jobs_survive_kills(program: httpx.Client, stub: StubEngine, workers: Workers, settings: Any) -> None:
    settings.JOBS_MAX_UNFINISHED = 10**6
    stub.does = echo
    made = {}

    for number in range(50 * KILLS + 50):
        text = f"answer {number} " * 5
        made[make(program, ask(text))["id"]] = text

    def is_over() -> bool:
        states = set(Job.objects.values_list("state", flat=True))
        assert states <= {"queued", "running", "succeeded"}
        return states == {"succeeded"}

    killed = kill_until(workers, stub, is_over)
    for job, text in made.items():
        shown = program.get(f"/v1/jobs/{job}").json()
        told = parse(program.get(shown["stream_url"]).text)
        assert shown["result"]["choices"][0]["message"]["content"] == text
        assert text_of(told) == text
        assert [kind for _, kind, _ in told if kind in ("succeeded", "failed", "cancelled")] == ["succeeded"]
        assert told[-1][1] == "succeeded"
    print(f"{killed} kills, {len(made)} jobs, {len(stub.requests) - len(made)} asked again")
    assert killed == KILLS


def test_a_batch_survives_kills(program: httpx.Client, stub: StubEngine, workers: Workers) -> None:
    stub.does = echo
    ids = [f"line {number}" for number in range(50 * KILLS + 50)]
    made = make_batch(program, as_file(map(line, ids)))
    killed = kill_until(workers, stub, lambda: show(program, made)["status"] == "completed")
    batch = show(program, made)
    assert batch["request_counts"] == {"total": len(ids), "completed": len(ids), "failed": 0}
    output = read(program, batch["output_file_id"])
    assert [one["custom_id"] for one in output] == ids
    assert [one["response"]["body"]["choices"][0]["message"]["content"] for one in output] == ids
    again = {text: count for text, count in asked_of(stub).items() if count > 1}
    print(f"{killed} kills, {len(ids)} lines, {len(again)} asked again")
    attempts = program.get(f"/v1/jobs/{made['job_id']}").json()["attempts"]
    assert len(again) <= 8 * (attempts - 1)  # those that were under way when a worker ended
    told = parse(program.get(made["stream_url"]).text)
    done = [data["done"] for _, kind, data in told if kind == "progress"]
    assert done == sorted(done) and done[-1] == len(ids)
    assert killed == KILLS


def test_a_thousand_jobs_of_twenty_tenants(
    gateway: Gateway, stub: StubEngine, support: Persona, workers: Workers, make_persona: MakePersona
) -> None:
    stub.does = echo
    for _ in range(2):
        workers.start(lease_s=600)  # nobody is killed here
    programs = []
    for number in range(TENANTS):
        tenant = persona_services.create_tenant(slug=f"tenant-{number}", name=f"Tenant {number}", owner=None)
        make_persona(tenant, "support", system_prompt="Help.")
        programs.append(gateway.http(persona_services.issue_api_key(tenant=tenant, name="app")[1]))
    made: list[list[str]] = [[] for _ in programs]
    for number in range(50):
        for owner, program in enumerate(programs):
            made[owner].append(make(program, ask(f"tenant {owner} job {number}"))["id"])

    def are_done() -> bool:
        services.sweep()
        listed = [program.get("/v1/jobs?limit=100").json()["data"] for program in programs]
        return all(job["state"] == "succeeded" for jobs in listed for job in jobs)

    eventually(are_done, WITHIN_S)
    for owner, program in enumerate(programs):
        jobs = {job["id"]: job for job in program.get("/v1/jobs?limit=100").json()["data"]}
        assert set(jobs) == set(made[owner])
        for number, job in enumerate(made[owner]):
            text = jobs[job]["result"]["choices"][0]["message"]["content"]
            assert text == f"tenant {owner} job {number}"
    asked = asked_of(stub)
    assert (len(asked), sum(asked.values())) == (1000, 1000), json.dumps(asked.most_common(5))
