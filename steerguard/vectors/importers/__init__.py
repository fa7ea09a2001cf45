"""Steering vectors of other tools, read exactly: every array on the block it belongs to, or not at all.

Each module is one tool's format, with where its numbers are measured. Files are data: nothing in them is run, and
sizes are checked before anything is read. torch is needed for `.pt` files only, numpy for the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from steerguard.vectors.canonical import write_vector
from steerguard.vectors.importers import canonical, formats
from steerguard.vectors.importers.formats import CANONICAL, FOREIGN, NAMES, Format
from steerguard.vectors.importers.request import CONVENTIONS, ImportRequest, Unanswered
from steerguard.vectors.importers.rows import check_blocks
from steerguard.vectors.importers.source import MAX_SOURCE_BYTES, Container, Source, read_source
from steerguard.vectors.vector import MAX_TEXT_CHARS, SteeringVector, VectorError

UNIT_TOLERANCE = 2**-8
"""How far from 1 a norm may be to count as 1. bfloat16 rounds each value, and so the norm, by up to 2**-9 of it."""


@dataclass(frozen=True)
class Imported:
    """A vector from a file, and how the file was understood."""

    vector: SteeringVector
    format: str
    convention: str
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """What the command line and the API say of it."""
        vector = self.vector
        return {
            "format": self.format,
            "convention": self.convention,
            "blocks": list(vector.layers),
            "hidden_size": vector.hidden_size,
            "digest": vector.digest,
            "norm": norm_kind(vector),
            "norms": {str(block): round(norm, 6) for block, norm in vector.norms.items()},
            "name": vector.name,
            "base_model": vector.base_model,
            "warnings": list(self.warnings),
        }


def import_vector(source: Source, request: ImportRequest) -> Imported:
    """The vector in a file of any format that is known; nothing is written.

    Its provenance says the source's format, name and SHA-256, the convention, and whether norms are `raw` or `unit`.
    Raises VectorError for a file that is refused, and Unanswered when something has to be said that the file doesn't.
    """
    wanted = formats.name_of(request.format) if request.format is not None else None
    if source.container is Container.SAFETENSORS and wanted in (None, CANONICAL):
        vector, name, convention, warnings = canonical.read(source, request), CANONICAL, "block.N is block N", []
        origin: Mapping[str, str] = vector.provenance
    else:
        hidden_size, num_layers = request.model()
        name, found = formats.read_foreign(source, request)
        convention, warnings = found.convention, list(found.warnings)
        vector = SteeringVector(found.layers, hidden_size, request.base_model, request.name)
        origin = {
            **found.provenance,
            "source_format": name,
            "source_sha256": source.sha256,
            "source_file": source.label[:MAX_TEXT_CHARS],
            "convention": convention,
            "num_layers": str(num_layers),
            "norm": norm_kind(vector),
        }
    if request.num_layers is not None:
        check_blocks(dict(vector.layers), request.num_layers)
    if request.layer is not None and list(vector.layers) != [request.layer]:
        raise VectorError("layer", "none, because the file says its blocks itself", str(request.layer))
    if request.base_model and vector.base_model and request.base_model != vector.base_model:
        warnings.append(f"the file says it was made for {vector.base_model}")
    vector = replace(
        vector,
        base_model=request.base_model or vector.base_model,
        name=request.name or vector.name or Path(source.label).stem[:MAX_TEXT_CHARS],
        provenance=origin,
    )
    write_vector(vector)  # a vector that fits no canonical file is refused here, not when it is stored
    return Imported(vector, name, convention, tuple(warnings))


def norm_kind(vector: SteeringVector) -> str:
    """`unit` when every block's array has length 1, as far as 16-bit floats can say; else `raw`."""
    return "unit" if all(abs(norm - 1) <= UNIT_TOLERANCE for norm in vector.norms.values()) else "raw"


__all__ = [
    "CANONICAL",
    "CONVENTIONS",
    "FOREIGN",
    "MAX_SOURCE_BYTES",
    "NAMES",
    "Container",
    "Format",
    "ImportRequest",
    "Imported",
    "Source",
    "Unanswered",
    "import_vector",
    "read_source",
]
