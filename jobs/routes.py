"""The job API, beside the gateway's own routes: make, list, look at and cancel jobs, and watch one."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from inference.gateway.call import Call
from inference.gateway.errors import InvalidRequest
from inference.gateway.routes import register
from jobs import services
from jobs.database import in_database
from jobs.errors import UnknownObject
from jobs.models import Job
from jobs.requests import read_request
from jobs.shapes import job_shape
from jobs.visible import find_visible, jobs_of
from jobs.watching import admit_watcher, watch_job

MAX_PAGE = 100


def register_all() -> None:
    register("POST", "/v1/jobs", create_job)
    register("GET", "/v1/jobs", list_jobs)
    register("GET", "/v1/jobs/{id}", show_job)
    register("DELETE", "/v1/jobs/{id}", cancel_job)
    register("GET", "/events/{id}", watch_job, admit=admit_watcher)


async def create_job(call: Call) -> None:
    asked = await call.exchange.read_json()
    idempotency_key = header(call, b"idempotency-key")
    services.check_idempotency_key(idempotency_key)
    inputs = await read_request(call, asked)
    submit = partial(
        services.submit,
        tenant=call.key.tenant,
        key_prefix=call.key.prefix,
        kind=Job.Kind.GENERATION,
        inputs=inputs,
        # Whose it is belongs to it: a key doesn't get at what another one made.
        request={"key": call.key.prefix, "asked": asked},
        idempotency_key=idempotency_key,
    )
    job, _ = await in_database(submit)
    await answer(call, job_shape(job))


async def list_jobs(call: Call) -> None:
    query = parse_qs(call.exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    limit, after = _page_size(query.get("limit", ["20"])[-1]), query.get("after", [None])[-1]

    def find() -> list[Job]:
        jobs = jobs_of(call.key)
        if after is not None:
            last = find_visible(call.key, after)
            if last is None:
                raise UnknownObject("job", after)
            jobs = jobs.filter(pk__lt=last.pk)
        return list(jobs.order_by("-pk")[: limit + 1])

    found = await in_database(find)
    page = [job_shape(job) for job in found[:limit]]
    await answer(call, {"object": "list", "data": page, "has_more": len(found) > limit})


async def show_job(call: Call) -> None:
    await answer(call, job_shape(await find_job(call)))


async def cancel_job(call: Call) -> None:
    job = await find_job(call)
    await answer(call, job_shape(await in_database(partial(services.cancel, job))))


async def find_job(call: Call) -> Job:
    """The job that the path names. Raises UnknownObject."""
    asked = call.path_params["id"]
    job = await in_database(partial(find_visible, call.key, asked))
    if job is None:
        raise UnknownObject("job", asked)
    return job


def _page_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_PAGE:
        raise InvalidRequest(f"'limit' must be a number from 1 to {MAX_PAGE}.", param="limit")
    return int(text[:9])


def header(call: Call, name: bytes) -> str | None:
    for known, value in call.exchange.scope["headers"]:
        if known == name:
            return str(value.decode("latin-1"))
    return None


async def answer(call: Call, shape: dict[str, Any]) -> None:
    await call.exchange.answer(json.dumps(shape).encode())
