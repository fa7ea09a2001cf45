"""DATA_DIR, the folder of all that SteerGuard writes: where it is, and that others on this machine can't read it.

Sessions, prompts in logs and secrets lie in it. Standard library only: it is asked for before anything is installed.
"""

import os
from pathlib import Path

DEFAULT = Path(__file__).resolve().parents[1] / "var"


def data_dir() -> Path:
    """DATA_DIR, absolute; `var` in the checkout by default."""
    return Path(os.environ.get("DATA_DIR") or DEFAULT).expanduser().resolve()


def make_data_dir() -> Path:
    """DATA_DIR, made for its owner alone unless it exists.

    The default folder is closed to others even when it does exist; one that the person named keeps the mode they
    gave it.
    """
    folder = data_dir()
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder == DEFAULT.resolve() and folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)
    return folder
