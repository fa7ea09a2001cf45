"""A JSON object as the answer to a request."""

from __future__ import annotations

import json
from typing import Any

from inference.gateway.call import Call


async def reply(call: Call, shape: dict[str, Any]) -> None:
    await call.exchange.answer(json.dumps(shape).encode())
