"""`python -m steerguard vectors`: import, export and show vector files."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steerguard.command_line import UNANSWERED, answer, write_whole

if TYPE_CHECKING:
    from steerguard.command_line import Commands
    from steerguard.vectors import SteeringVector

# The import request's fields by the options that say them, where the names differ.
_OPTIONS = {"num_layers": "--layers"}


def register(commands: "Commands") -> None:
    vectors = commands.add_parser("vectors", help="import, export and show vector files")
    actions = vectors.add_subparsers(dest="action", required=True)
    _register_import(actions)
    export = actions.add_parser("export", help="write a canonical file in another tool's format")
    export.add_argument("file", type=Path, help="a canonical safetensors file")
    export.add_argument("--format", required=True, help="canonical, repeng or llama.cpp (GGUF)")
    export.add_argument("--out", type=Path, required=True, help="the file to write")
    export.set_defaults(run=_export)
    show = actions.add_parser("show", help="say what is in a canonical file")
    show.add_argument("file", type=Path, help="a canonical safetensors file")
    show.set_defaults(run=_show)


def _register_import(actions: "Commands") -> None:
    command = actions.add_parser(
        "import",
        help="read a file of any known tool; write the canonical file with --out",
        epilog="Exit status: 2 when the file is refused; 3 when an option has to say what the file doesn't.",
    )
    command.add_argument("file", type=Path, help="safetensors, GGUF, .pt, .svec or .npy")
    command.add_argument("--hidden-size", type=int, required=True, help="the model's hidden size")
    command.add_argument("--layers", type=int, required=True, help="how many decoder blocks the model has")
    command.add_argument("--format", help="the tool that wrote it (default: by the file's content)")
    command.add_argument("--layer", type=int, help="the 0-based block of a file with one vector and no layer")
    command.add_argument(
        "--index", default="measured", help="llama.cpp's direction.N: measured (block N-1) or applied (N)"
    )
    command.add_argument(
        "--rows", help="a .npy matrix: blocks (row L is block L) or hidden_states (row L is block L-1)"
    )
    command.add_argument("--zero-rows", default="refuse", help="a matrix's rows of zeros: refuse (default) or skip")
    command.add_argument("--base-model", default="", help="the model's name, kept in the canonical file")
    command.add_argument("--name", default="", help="the vector's name (default: the file's)")
    command.add_argument("--out", type=Path, metavar="DIR", help="the folder to write NAME.safetensors to")
    command.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from steerguard.vectors import VectorError, write_vector
    from steerguard.vectors.importers import ImportRequest, Unanswered, import_vector, read_source

    try:
        request = ImportRequest(
            hidden_size=options.hidden_size,
            num_layers=options.layers,
            format=options.format,
            layer=options.layer,
            index=options.index,
            rows=options.rows,
            zero_rows=options.zero_rows,
            base_model=options.base_model,
            name=options.name,
        )
        imported = import_vector(read_source(options.file), request)
    except Unanswered as question:
        option = _OPTIONS.get(question.field, f"--{question.field.replace('_', '-')}")
        print(f"steerguard vectors: say {option} ({question.choices}): {question.why}", file=sys.stderr)
        return UNANSWERED
    result = imported.as_json()
    if options.out is not None:
        path = options.out / f"{imported.vector.name}.safetensors"
        if not imported.vector.name or path.parent != options.out:
            raise VectorError("name", "one that can name a file", repr(imported.vector.name)[:80])
        data = write_vector(imported.vector)
        if path.exists() and path.read_bytes() != data:
            raise VectorError(f"--out {path}", "no other file in its place (--name gives another name)", "one")
        write_whole(path, data)
        result["out"] = str(path)
    return answer(result)


def _export(options: argparse.Namespace) -> int:
    from steerguard.vectors import VectorError
    from steerguard.vectors.exporters import EXPORTS
    from steerguard.vectors.importers.formats import name_of

    name = name_of(options.format)
    if name not in EXPORTS:
        raise VectorError("--format", f"one of {', '.join(EXPORTS)}", repr(options.format)[:80])
    vector = _read(options.file)
    write_whole(options.out, EXPORTS[name][1](vector))
    return answer({"format": name, **_described(vector), "out": str(options.out)})


def _show(options: argparse.Namespace) -> int:
    vector = _read(options.file)
    return answer({"format": "canonical", **_described(vector), "provenance": dict(vector.provenance)})


def _read(path: Path) -> "SteeringVector":
    from steerguard.vectors import read_vector
    from steerguard.vectors.importers import read_source

    return read_vector(read_source(path).data)


def _described(vector: "SteeringVector") -> dict[str, object]:
    return {
        "name": vector.name,
        "blocks": list(vector.layers),
        "hidden_size": vector.hidden_size,
        "digest": vector.digest,
        "base_model": vector.base_model,
        "norms": {str(block): round(norm, 6) for block, norm in vector.norms.items()},
    }
