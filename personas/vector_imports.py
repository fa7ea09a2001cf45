"""Files of vectors that people send: understood in a process of their own, and refused in the API's words."""

import threading

import structlog

from personas.errors import ImportsBusy, InvalidVectorFile, UnclearVectorFile
from steerguard.vectors import VectorError
from steerguard.vectors.importers import Container, Imported, ImportRequest, Source, Unanswered, import_vector
from steerguard.vectors.importers.isolated import ImportFailed, import_isolated

MAX_AT_ONCE = 2  # a process and up to a gigabyte each
WAIT_S = 60.0

# What a refusal may be about beside the file: what was said with it.
SAID = {"format", "layer", "hidden_size", "num_layers", "index", "rows", "zero_rows", "base_model", "name"}

log = structlog.get_logger("vectors")
_turns = threading.BoundedSemaphore(MAX_AT_ONCE)


def understand(data: bytes, file_name: str, said: dict[str, object]) -> Imported:
    """What the file is, by the fields of ImportRequest in `said`.

    Raises InvalidVectorFile, UnclearVectorFile when a field has to say what the file doesn't, ImportsBusy.
    """
    if not _turns.acquire(timeout=WAIT_S):
        raise ImportsBusy("file", "few imports at once", f"{MAX_AT_ONCE} that take long")
    try:
        request = ImportRequest(**said)  # type: ignore[arg-type]  # it checks them
        source = Source(data, file_name)
        # Our own files need no foreign parser.
        return (import_vector if source.container is Container.SAFETENSORS else import_isolated)(source, request)
    except VectorError as error:
        if error.field in SAID:
            raise InvalidVectorFile(error.field, error.expected, error.found) from None
        raise InvalidVectorFile("file", f"{error.field} with {error.expected}", error.found) from None
    except Unanswered as question:
        raise UnclearVectorFile(question.field, question.choices, f"nothing, and {question.why}") from None
    except ImportFailed as error:
        log.warning("import failed", reason=str(error), bytes=len(data))
        raise InvalidVectorFile("file", "one that can be read within a minute and 2 GiB of memory", "not so") from None
    finally:
        _turns.release()
