"""Pushing what the engines are doing to the pages that are open.

A consumer joins GROUP and handles `engines_changed(event)`, whose `engines` is what engine_summaries returns.
"""

from typing import TypedDict

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

from inference.models import Engine

GROUP = "engines"


class EngineSummary(TypedDict):
    """An engine as everybody who signs in may see it."""

    name: str
    status: str
    detail: str


def engine_summaries() -> list[EngineSummary]:
    """The enabled engines, by name."""
    return [
        {"name": engine.name, "status": engine.status, "detail": engine.status_detail}
        for engine in Engine.objects.filter(enabled=True)
    ]


def push_engines() -> None:
    """Send the summaries to every open page."""
    layer = get_channel_layer()
    assert layer is not None, "CHANNEL_LAYERS has no default"
    async_to_sync(layer.group_send)(GROUP, {"type": "engines.changed", "engines": engine_summaries()})
