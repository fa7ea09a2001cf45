"""Engines: everybody who may look sees how they are, staff register and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from inference import secret_text, services
from inference.api import shapes
from inference.models import Engine
from personas.api.documented import operation
from personas.api.views import ApiView, require_some
from personas.errors import NameTaken

ENGINE_EXAMPLE = {
    "name": "gpu-1",
    "status": "ready",
    "base_model": "SmolLM2-135M-Instruct",
    "url": "http://10.0.0.5:8000",
    "enabled": True,
    "expected_base_model": "",
    "has_api_key": True,
    "status_detail": "",
    "hidden_size": 576,
    "num_layers": 30,
    "registered_at": "2026-12-01T09:00:00Z",
    "last_seen_at": "2026-12-01T09:05:00Z",
}


class EnginesView(ApiView):
    """The fleet."""

    @operation(
        "list_engines",
        "The engines: name, status and base model; for staff, everything but keys",
        tag="engines",
        returns=shapes.ListedEngineShape(many=True),
        query=shapes.EngineQuery,
    )
    def get(self, request: Request) -> Response:
        shape = shapes.OperatedEngineShape if self.caller.is_staff else shapes.EngineShape
        return self.page(Engine.objects.all(), shapes.EngineQuery, shape, tie="name")

    @operation(
        "register_engine",
        "Register an engine (staff)",
        tag="engines",
        body=shapes.EngineInput,
        returns=shapes.OperatedEngineShape,
        status=201,
        is_post=True,
        example={"name": "gpu-1", "url": "http://10.0.0.5:8000", "api_key": "…"},
        answer=ENGINE_EXAMPLE,
    )
    def post(self, request: Request) -> Response:
        self.require_staff()
        said = self.body(shapes.EngineInput)
        with transaction.atomic():
            if Engine.objects.filter(name=said["name"]).exists():
                raise NameTaken("name", "an engine name that is free", said["name"])
            engine = services.register_engine(actor=self.actor, **said)
        return Response(shapes.OperatedEngineShape(engine).data, 201)


class EngineView(ApiView):
    """One engine, for staff."""

    @operation(
        "get_engine",
        "An engine (staff)",
        tag="engines",
        returns=shapes.OperatedEngineShape,
        failures=[404],
        answer=ENGINE_EXAMPLE,
    )
    def get(self, request: Request, engine: str) -> Response:
        return Response(shapes.OperatedEngineShape(self._engine(engine)).data)

    @operation(
        "update_engine",
        "Change what is known about an engine, or take it out of service (staff)",
        tag="engines",
        body=shapes.EngineChanges,
        returns=shapes.OperatedEngineShape,
        failures=[404],
        description="A change of address, key or model puts the engine into service and has it looked at anew.",
        example={"enabled": False},
        answer=ENGINE_EXAMPLE,
    )
    @transaction.atomic
    def patch(self, request: Request, engine: str) -> Response:
        found = self._engine(engine)
        said = self.body(shapes.EngineChanges)
        require_some(said, shapes.EngineChanges)
        enabled = said.pop("enabled", None)
        if said:
            found = services.register_engine(name=found.name, actor=self.actor, **{**_known(found, said), **said})
        if enabled is not None:
            found = services.set_engine_enabled(engine=found, enabled=enabled, actor=self.actor)
        return Response(shapes.OperatedEngineShape(found).data)

    @operation(
        "remove_engine",
        "Forget an engine; what runs there goes on (staff)",
        tag="engines",
        status=204,
        failures=[404],
    )
    def delete(self, request: Request, engine: str) -> Response:
        services.remove_engine(engine=self._engine(engine), actor=self.actor)
        return Response(status=204)

    def _engine(self, name: str) -> Engine:
        """Raises PermissionDenied before it looks, NotFound."""
        self.require_staff()
        engine = Engine.objects.filter(name=name).first()
        if engine is None:
            raise NotFound
        return engine


def _known(engine: Engine, said: Mapping[str, Any]) -> dict[str, Any]:
    """What is not said stays. A key that can't be read any more is none, until it is said again."""
    try:
        api_key = engine.api_key if "api_key" not in said else ""
    except secret_text.Unreadable:
        api_key = ""
    return {"url": engine.url, "api_key": api_key, "expected_base_model": engine.expected_base_model}
