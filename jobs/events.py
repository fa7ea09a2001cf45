"""What happens to a job, as a Redis stream: appended by whoever makes it happen, read by any number of watchers.

A stream is a convenience, the row is the truth: when Valkey is away the job goes on, and what a lost stream no longer
tells is told from the row. Its ids are the SSE ids. Every append passes a fence (Lua, atomic): a worker that has lost
its job can't add to the next one's text, and after one terminal event there is no other.

| event | data |
|---|---|
| `queued`, `started` | the job |
| `restarted` | `attempt`: the text so far is void, deltas begin again |
| `delta` | `index` of the choice, and `text` |
| `progress` | `done`, `total`, `failed`, `rate_per_s`, `seconds_left` |
| `succeeded`, `failed`, `cancelled` | the job with its `result` or `error`; the last event |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import redis
import structlog
from django.conf import settings
from redis.asyncio import Redis as AsyncRedis

from jobs.models import Job
from personas.changes import valkey

log = structlog.get_logger("jobs")

# Deltas are batched ever more as a stream grows (jobs/generation.py), so that no stream reaches this and loses its
# beginning.
MAX_EVENTS = 10_000

# Says the id of a job that has one more: jobs/feeds.py listens here once for all that a process watches.
CHANNEL = "steerguard:job-events"

TIMEOUTS: dict[str, Any] = {"socket_connect_timeout": 2, "socket_timeout": 10}
SILENCE_S = 5.0  # of a channel; less than the socket's

Appended = Literal["appended", "refused", "lost"]

_APPEND = """
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
if tonumber(ARGV[1]) < fence then return 'refused' end
if ARGV[3] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then return 'lost' end
redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[5], '*', 'type', ARGV[6], 'data', ARGV[7])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[8], ARGV[9])
redis.call('SET', KEYS[2], ARGV[2] == '1' and '9007199254740991' or ARGV[1], 'EX', ARGV[4])
return 'appended'
"""


def stream_key(job_id: str) -> str:
    """The braces keep both of a job's keys on one node of a cluster."""
    return f"steerguard:job:{{{job_id}}}:events"


def fence_key(job_id: str) -> str:
    return f"steerguard:job:{{{job_id}}}:fence"


def append(job: Job, type: str, data: Mapping[str, Any]) -> None:
    """For changes outside a worker. A Valkey that is away is logged: nobody waits for an event to be stored."""
    try:
        valkey().eval(_APPEND, 2, *_arguments(job, type, data, must_exist=False))
    except redis.RedisError as error:
        log.warning("job event not stored", job=job.public_id, type=type, error=str(error))


async def append_async(
    client: AsyncRedis, job: Job, type: str, data: Mapping[str, Any], *, must_exist: bool = False
) -> Appended:
    """`must_exist` answers "lost", and appends nothing, where the stream is gone. Raises redis.RedisError."""
    arguments = _arguments(job, type, data, must_exist=must_exist)
    answer = await client.eval(_APPEND, 2, *arguments)  # type: ignore[misc]  # typed for both clients at once
    return answer.decode()  # type: ignore[no-any-return]


def open_redis() -> AsyncRedis:
    """A client for the running event loop, which whoever opens it closes."""
    return AsyncRedis.from_url(settings.REDIS_URL, **TIMEOUTS)


def _arguments(job: Job, type: str, data: Mapping[str, Any], *, must_exist: bool) -> list[str]:
    return [
        stream_key(job.public_id),
        fence_key(job.public_id),
        str(job.attempts),
        "1" if type in Job.ENDED else "0",
        "1" if must_exist else "0",
        str(settings.JOBS_EVENTS_KEEP_S),
        str(MAX_EVENTS),
        type,
        dump(data),
        CHANNEL,
        job.public_id,
    ]


def dump(data: Mapping[str, Any]) -> str:
    """On one line, and in ASCII."""
    return json.dumps(data, separators=(",", ":"))
