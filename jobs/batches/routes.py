"""`/v1/batches`, as the `openai` clients ask it."""

from __future__ import annotations

from functools import partial
from typing import Any

from inference.gateway.call import Call
from inference.gateway.errors import InvalidRequest
from jobs import services as job_services
from jobs.batches import services
from jobs.batches.input import ENDPOINTS
from jobs.database import in_database
from jobs.errors import UnknownField, UnknownObject
from jobs.files.upload import check_expires_after
from jobs.models import Batch, StoredFile
from jobs.pages import list_page, read_query
from jobs.replies import reply
from jobs.shapes import batch_shape
from jobs.visible import batches_of, find_batch, find_file

FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")

# As at OpenAI.
MAX_METADATA = 16
MAX_METADATA_NAME_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


async def create_batch(call: Call) -> None:
    asked = await call.exchange.read_json()
    idempotency_key = job_services.idempotency_key_of(call.exchange.scope["headers"])
    for field in asked:
        if field not in FIELDS:
            raise UnknownField(field)
    endpoint = _one_of(asked, "endpoint", ENDPOINTS)
    window = _one_of(asked, "completion_window", tuple(services.COMPLETION_WINDOWS))
    metadata, expires_after_s = _metadata(asked.get("metadata")), _output_expires_after_s(asked)
    file_id = asked.get("input_file_id")
    if not isinstance(file_id, str):
        raise InvalidRequest("'input_file_id' must be the id of a file.", param="input_file_id")
    file = await in_database(partial(find_file, call.key, file_id))
    if file is None:
        raise UnknownObject("file", file_id)
    if file.purpose != StoredFile.Purpose.BATCH:
        raise InvalidRequest("'input_file_id' must be a file whose purpose is 'batch'.", param="input_file_id")
    create = partial(
        services.create_batch,
        tenant=call.key.tenant,
        key_prefix=call.key.prefix,
        input_file=file,
        endpoint=endpoint,
        completion_window=window,
        metadata=metadata,
        output_expires_after_s=expires_after_s,
        idempotency_key=idempotency_key,
        # Whose it is belongs to it: a key doesn't get at what another one made.
        request={"key": call.key.prefix, "asked": asked},
    )
    await reply(call, batch_shape(await in_database(create)))


async def list_batches(call: Call) -> None:
    query, find = read_query(call), partial(find_batch, call.key)
    await reply(call, await list_page(query, batches_of(call.key), noun="batch", find=find, shape=batch_shape))


async def show_batch(call: Call) -> None:
    await reply(call, batch_shape(await _find(call)))


async def cancel_batch(call: Call) -> None:
    """At once where it waits, else within two seconds; what has ended stays as it is."""
    batch = await _find(call)
    await in_database(partial(job_services.cancel, batch.job))
    await reply(call, batch_shape(await _find(call)))


async def _find(call: Call) -> Batch:
    """The batch that the path names. Raises UnknownObject."""
    asked = call.path_params["id"]
    if (batch := await in_database(partial(find_batch, call.key, asked))) is None:
        raise UnknownObject("batch", asked)
    return batch


def _one_of(asked: dict[str, Any], field: str, values: tuple[str, ...]) -> str:
    value = asked.get(field)
    if not isinstance(value, str) or value not in values:
        raise InvalidRequest(f"'{field}' must be one of {', '.join(values)}.", param=field)
    return value


def _metadata(said: Any) -> dict[str, str] | None:
    if said is None:
        return None
    fits = (
        isinstance(said, dict)
        and len(said) <= MAX_METADATA
        and all(len(name) <= MAX_METADATA_NAME_CHARS for name in said)
        and all(isinstance(value, str) and len(value) <= MAX_METADATA_VALUE_CHARS for value in said.values())
    )
    if not fits:
        raise InvalidRequest(
            f"'metadata' must be an object of up to {MAX_METADATA} texts of up to {MAX_METADATA_VALUE_CHARS} "
            f"characters, with names of up to {MAX_METADATA_NAME_CHARS}.",
            param="metadata",
        )
    return dict(said)


def _output_expires_after_s(asked: dict[str, Any]) -> int | None:
    said = asked.get("output_expires_after")
    if said is None:
        return None
    if not isinstance(said, dict):
        raise InvalidRequest("'output_expires_after' must be an object.", param="output_expires_after")
    return check_expires_after(said.get("anchor"), said.get("seconds"), "output_expires_after")
