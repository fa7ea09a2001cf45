"""The routes of this app, beside the gateway's own: jobs here, files and batches in their packages."""

from __future__ import annotations

from functools import partial

from inference.gateway.call import Call
from inference.gateway.routes import register
from jobs import services
from jobs.batches import routes as batches
from jobs.database import in_database
from jobs.errors import UnknownObject
from jobs.files import routes as files
from jobs.models import Job
from jobs.pages import list_page, read_query
from jobs.replies import reply
from jobs.requests import read_request
from jobs.shapes import job_shape
from jobs.visible import find_visible, jobs_of
from jobs.watching import admit_watcher, watch_job


def register_all() -> None:
    register("POST", "/v1/jobs", create_job)
    register("GET", "/v1/jobs", list_jobs)
    register("GET", "/v1/jobs/{id}", show_job)
    register("DELETE", "/v1/jobs/{id}", cancel_job)
    register("GET", "/events/{id}", watch_job, admit=admit_watcher)
    register("POST", "/v1/files", files.create_file)
    register("GET", "/v1/files", files.list_files)
    register("GET", "/v1/files/{id}", files.show_file)
    register("DELETE", "/v1/files/{id}", files.delete_file)
    register("GET", "/v1/files/{id}/content", files.send_content)
    register("POST", "/v1/batches", batches.create_batch)
    register("GET", "/v1/batches", batches.list_batches)
    register("GET", "/v1/batches/{id}", batches.show_batch)
    register("POST", "/v1/batches/{id}/cancel", batches.cancel_batch)


async def create_job(call: Call) -> None:
    asked = await call.exchange.read_json()
    idempotency_key = services.idempotency_key_of(call.exchange.scope["headers"])
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
    await reply(call, job_shape(job))


async def list_jobs(call: Call) -> None:
    query, find = read_query(call), partial(find_visible, call.key)
    await reply(call, await list_page(query, jobs_of(call.key), noun="job", find=find, shape=job_shape))


async def show_job(call: Call) -> None:
    await reply(call, job_shape(await find_job(call)))


async def cancel_job(call: Call) -> None:
    job = await find_job(call)
    await reply(call, job_shape(await in_database(partial(services.cancel, job))))


async def find_job(call: Call) -> Job:
    """The job that the path names. Raises UnknownObject."""
    asked = call.path_params["id"]
    job = await in_database(partial(find_visible, call.key, asked))
    if job is None:
        raise UnknownObject("job", asked)
    return job
