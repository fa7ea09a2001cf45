"""DATA_DIR/demo-credentials.json: the demo's log-ins and keys, for the person who runs it and the start screen.

The database has only hashes of them, so this file, readable by its owner alone, is where they are. What it
says is kept from run to run as long as it still works.
"""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Credentials:
    """`user`, `password`, `api_key` and `persona` are what a newcomer needs; the rest is for the operator."""

    user: str = "demo"
    password: str | None = None
    admin_user: str = "admin"
    admin_password: str | None = None
    persona: str = ""
    api_key: str | None = None
    """The key of the tenant that `persona` belongs to."""
    api_keys: dict[str, str] = field(default_factory=dict)
    """A key for each tenant, by its slug."""


def credentials_path(data_dir: Path) -> Path:
    return data_dir / "demo-credentials.json"


def read_credentials(path: Path) -> Credentials:
    """What the file says; nothing, when it is not there or not ours."""
    try:
        said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(**said)
    except (OSError, ValueError, TypeError):
        return Credentials()


def write_credentials(path: Path, credentials: Credentials) -> None:
    """Replaces the file in one step; it is never readable by others, not even while it is written."""
    handle, draft = tempfile.mkstemp(prefix=".demo-credentials-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(credentials), file, indent=2)
            file.write("\n")
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
