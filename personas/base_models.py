"""The models that a tenant's vectors may be for, as far as the installation knows them."""

import json
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db.models.fields.json import KT

from personas.models import SteeringVector, Tenant
from steerguard.vectors import base_model_name


@dataclass(frozen=True)
class BaseModel:
    """A model's name, as engines serve it, and its shape; None where nothing has said it yet."""

    name: str
    hidden_size: int
    num_layers: int | None


def known_base_models(tenant: Tenant) -> list[BaseModel]:
    """MODEL, if it is a folder, then those of the vectors that the tenant may use; each name once."""
    configured = _configured()
    known = {configured.name: configured} if configured else {}
    said = SteeringVector.objects.usable_by(tenant).annotate(depth=KT("source__num_layers"))
    for name, hidden_size, depth in said.values_list("base_model", "hidden_size", "depth").distinct().order_by():
        num_layers = int(depth) if depth and depth.isdecimal() else None
        if name not in known or known[name].num_layers is None:
            known[name] = BaseModel(name, hidden_size, num_layers)
    return list(known.values())


def _configured() -> BaseModel | None:
    """What the configuration of MODEL says; nothing for a hub id, or before the model is there."""
    try:
        config = json.loads((Path(settings.MODEL) / "config.json").read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return BaseModel(base_model_name(settings.MODEL), int(config["hidden_size"]), int(config["num_hidden_layers"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
