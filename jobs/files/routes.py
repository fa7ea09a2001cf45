"""`/v1/files`, as the `openai` clients ask it."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from urllib.parse import quote

from inference.gateway.call import Call
from inference.gateway.errors import InvalidRequest
from jobs.database import in_database
from jobs.errors import UnknownObject
from jobs.files import services, storage
from jobs.files.upload import receive_file
from jobs.models import StoredFile
from jobs.pages import list_page, read_query
from jobs.replies import reply
from jobs.shapes import file_shape
from jobs.visible import files_of, find_file

MAX_PAGE = 10_000  # as at OpenAI
CHUNK_BYTES = 256 * 1024


async def create_file(call: Call) -> None:
    await reply(call, file_shape(await receive_file(call)))


async def list_files(call: Call) -> None:
    query = read_query(call, max_limit=MAX_PAGE, limit=MAX_PAGE)
    files = files_of(call.key)
    if (purpose := query.more.get("purpose")) is not None:
        if purpose not in StoredFile.Purpose.values:
            raise InvalidRequest(f"'purpose' must be one of {', '.join(StoredFile.Purpose.values)}.", param="purpose")
        files = files.filter(purpose=purpose)
    await reply(call, await list_page(query, files, noun="file", find=partial(find_file, call.key), shape=file_shape))


async def show_file(call: Call) -> None:
    await reply(call, file_shape(await _find(call)))


async def delete_file(call: Call) -> None:
    file = await _find(call)
    await in_database(partial(services.delete_file, file))
    await reply(call, {"id": file.public_id, "object": "file", "deleted": True})


async def send_content(call: Call) -> None:
    """The bytes, from the disk as the client takes them."""
    file, exchange = await _find(call), call.exchange
    try:
        content = await asyncio.to_thread(open, storage.path_of(file.storage_name), "rb")
    except FileNotFoundError:
        raise UnknownObject("file", file.public_id) from None  # deleted meanwhile
    try:
        async with exchange.while_client_listens(), exchange.kept_alive(b""):
            headers = {"content-length": str(file.size), "content-disposition": _disposition(file.filename)}
            await exchange.start(200, "application/octet-stream", headers)
            while data := await asyncio.to_thread(content.read, CHUNK_BYTES):
                await exchange.write(data)
            await exchange.finish()
    finally:
        content.close()


def _disposition(filename: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename)}"


async def _find(call: Call) -> StoredFile:
    """The file that the path names. Raises UnknownObject."""
    asked = call.path_params["id"]
    if (file := await in_database(partial(find_file, call.key, asked))) is None:
        raise UnknownObject("file", asked)
    return file
