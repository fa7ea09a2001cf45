"""The formats by name, and which of them a file is.

A file's name and extension decide nothing. Where the content doesn't either, the question goes back (`Unanswered`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from steerguard.vectors.gguf_file import GgufFile, read_gguf
from steerguard.vectors.importers import (
    cast,
    control_vectors,
    easysteer,
    hidden_directions,
    llama_cpp,
    npy,
    persona_vectors,
    repeng,
    steering_vectors,
)
from steerguard.vectors.importers.request import Found, ImportRequest, Unanswered
from steerguard.vectors.importers.rows import by_row_count
from steerguard.vectors.importers.source import Container, Source
from steerguard.vectors.json_text import parse_object
from steerguard.vectors.torch_file import SavedSteeringVector, read_torch
from steerguard.vectors.vector import VectorError

Read = Callable[[Any, ImportRequest], Found]


@dataclass(frozen=True)
class Format:
    """A foreign format: what it is called, in which containers it comes, and how an opened one is read."""

    name: str
    title: str
    containers: tuple[Container, ...]
    read: Read
    aliases: tuple[str, ...] = ()


CANONICAL = "canonical"

FOREIGN: Mapping[str, Format] = {
    one.name: one
    for one in (
        Format("repeng", "repeng GGUF", (Container.GGUF,), repeng.read),
        Format(
            "llama.cpp",
            "llama.cpp cvector-generator GGUF",
            (Container.GGUF,),
            llama_cpp.read,
            aliases=("llama-cpp", "llamacpp", "cvector-generator", "llama-cvector-generator"),
        ),
        Format("easysteer", "EasySteer GGUF, or its bare .pt", (Container.GGUF, Container.TORCH), easysteer.read),
        Format(
            "steering-vectors",
            "steering-vectors SteeringVector, torch.save",
            (Container.TORCH,),
            steering_vectors.read,
        ),
        Format(
            "hidden-directions",
            "hidden-directions or hotwire .pt",
            (Container.TORCH,),
            hidden_directions.read,
            aliases=("hotwire",),
        ),
        Format("persona-vectors", "persona-vectors .pt", (Container.TORCH,), persona_vectors.read),
        Format("cast", "CAST .svec", (Container.JSON,), cast.read, aliases=("svec", "activation-steering")),
        Format("npy", "numpy .npy", (Container.NPY,), npy.read, aliases=("numpy",)),
    )
}
NAMES = (CANONICAL, *FOREIGN)
_ALIASES = {
    "safetensors": CANONICAL,
    "steerguard": CANONICAL,
    **{alias: one.name for one in FOREIGN.values() for alias in one.aliases},
}


def name_of(said: str) -> str:
    """The format that `said` names, in any case and with underscores or hyphens. Raises VectorError."""
    name = said.lower().replace("_", "-").replace(" ", "-")
    name = _ALIASES.get(name, name)
    if name not in NAMES:
        raise VectorError("format", f"one of {', '.join(NAMES)}", repr(said)[:80])
    return name


def read_foreign(source: Source, request: ImportRequest) -> tuple[str, Found]:
    """The name of the file's format and what it holds. Raises VectorError, Unanswered."""
    opened = _open(source)
    name = name_of(request.format) if request.format is not None else _detect(source.container, opened, request)
    chosen = FOREIGN.get(name)
    if chosen is None or source.container not in chosen.containers:
        kinds = " or ".join(chosen.containers) if chosen else Container.SAFETENSORS
        raise VectorError("file", f"{kinds}, for format {name}", source.container)
    return name, chosen.read(opened, request)


def _open(source: Source) -> object:
    match source.container:
        case Container.GGUF:
            return read_gguf(source.data)
        case Container.TORCH:
            return read_torch(source.data)
        case Container.NPY:
            return npy.load(source.data)
        case Container.JSON:
            return parse_object("file", source.data)
        case Container.SAFETENSORS:
            raise VectorError("file", "a foreign format", Container.SAFETENSORS)


def _detect(container: Container, opened: object, request: ImportRequest) -> str:
    """Raises Unanswered, and VectorError for what is no vector in any format."""
    if isinstance(opened, GgufFile):
        written_by = control_vectors.written_by(opened)
        if written_by is None:
            raise Unanswered("format", _choices(container), "it has no trace of the tool that wrote it")
        return written_by
    if container is not Container.TORCH:
        return {Container.NPY: "npy", Container.JSON: "cast"}[container]
    if isinstance(opened, SavedSteeringVector):
        return "steering-vectors"
    if isinstance(opened, Mapping) and opened and all(type(key) is int for key in opened):
        raise Unanswered("format", "steering-vectors", "it is a plain dict by layer, and doesn't say whose layers")
    array = hidden_directions.only_array(opened)
    if not isinstance(array, np.ndarray):
        raise VectorError("file", "a tensor, a dict with one, or a SteeringVector", type(array).__name__)
    if array.ndim == 1 or (array.ndim == 2 and len(array) == 1 and request.layer is not None):
        return "easysteer" if array is opened else "hidden-directions"
    is_persona = by_row_count("vector", array, request, "format", _choices(container, matrix=True))
    return "persona-vectors" if is_persona else "hidden-directions"


def _choices(container: Container, *, matrix: bool = False) -> str:
    names = [one.name for one in FOREIGN.values() if container in one.containers]
    if matrix:
        names = [name for name in names if name in ("hidden-directions", "persona-vectors")]
    return " or ".join(names)
