"""What the person set, what follows from it, and the environment that every process gets.

All settings of `make run` are environment variables (README.md lists them). This module reads them once, fills in
the defaults and keeps the secrets that the product makes for itself in DATA_DIR, readable by the owner only.
"""

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from deploy.data_dir import data_dir, make_data_dir
from deploy.local.problem import Problem

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = "SmolLM2-135M-Instruct"
# sockaddr_un.sun_path, less its final NUL (unix(7)); macOS has 104, so this leaves room there too.
SOCKET_PATH_LIMIT = 103


@dataclass(frozen=True)
class Environment:
    """One start of the product on this machine."""

    data_dir: Path
    host: str
    port: int
    model: str  # a local folder, or a name on the Hugging Face hub
    served_model_name: str
    engine_url: str
    engine_port: int | None  # None: ENGINE_URL names an engine that runs elsewhere
    engine_key: str
    redis_url: str
    valkey_socket: Path | None  # None: REDIS_URL names a server that runs elsewhere
    database_url: str | None  # None: SQLite in DATA_DIR
    accelerator: str
    verbose: bool

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the pages."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://{host}:{self.port}"

    @property
    def logs(self) -> Path:
        """Folder of the full, unfiltered logs."""
        return self.data_dir / "logs"

    def for_children(self) -> dict[str, str]:
        """The environment of every process of the product, settings included."""
        chosen = {
            "DATA_DIR": str(self.data_dir),
            "HOST": self.host,
            "PORT": str(self.port),
            "MODEL": self.model,
            "SERVED_MODEL_NAME": self.served_model_name,
            "ENGINE_URL": self.engine_url,
            "ENGINE_KEY": self.engine_key,
            "REDIS_URL": self.redis_url,
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "config.settings",
        }
        if self.database_url:
            chosen["DATABASE_URL"] = self.database_url
        # Byte code is what makes the second start quick; some shells turn it off.
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | chosen


def read_environment() -> Environment:
    """Read the variables, create DATA_DIR and its secrets.

    Raises:
        Problem: a variable has a value that can't work.
    """
    try:
        data = make_data_dir()
        run = data / "run"
        for folder in (run, data / "logs"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o700)
    except PermissionError:
        raise Problem(f"{data_dir()} can't be written: set DATA_DIR to a folder of your own.") from None

    model = os.environ.get("MODEL") or str(demo_model_dir(data))
    engine_url = os.environ.get("ENGINE_URL", "")
    engine_port = None if engine_url else _port("ENGINE_PORT", 8100)
    redis_url = os.environ.get("REDIS_URL", "")
    socket = None if redis_url else _socket_path(run)
    if engine_url and urlsplit(engine_url).scheme not in ("http", "https"):
        raise Problem(f"ENGINE_URL={engine_url} is no http address: use something like http://127.0.0.1:8100.")
    return Environment(
        data_dir=data,
        host=os.environ.get("HOST", "127.0.0.1"),
        port=_port("PORT", 8000),
        model=model,
        served_model_name=os.environ.get("SERVED_MODEL_NAME") or served_name(model),
        engine_url=engine_url.rstrip("/") or f"http://127.0.0.1:{engine_port}",
        engine_port=engine_port,
        engine_key=os.environ.get("ENGINE_KEY") or _own_secret(data / "engine-key"),
        redis_url=redis_url or f"unix://{socket}",
        valkey_socket=socket,
        database_url=os.environ.get("DATABASE_URL"),
        accelerator=os.environ.get("ACCELERATOR", "cpu"),
        verbose=os.environ.get("VERBOSE", "") not in ("", "0"),
    )


def demo_model_dir(data: Path) -> Path:
    """Where the prepared demo model lies."""
    return data / "models" / DEMO_MODEL


def served_name(model: str) -> str:
    """The name under which the engine serves a model: a folder's last part, a hub name as it is."""
    return Path(model).resolve().name if is_local(model) else model


def is_local(model: str) -> bool:
    """Whether MODEL is a folder on this machine, so that nothing may be fetched for it."""
    return Path(model).is_absolute() or Path(model).is_dir()


def _port(name: str, default: int) -> int:
    text = os.environ.get(name) or str(default)
    if not (text.isdigit() and 0 < int(text) < 65536):
        raise Problem(f"{name}={text} is no port: use a number from 1 to 65535.")
    return int(text)


def _socket_path(run: Path) -> Path:
    """The socket of the embedded Valkey; in the temporary folder when DATA_DIR's path is too long for one."""
    inside = run / "valkey.sock"
    if len(os.fsencode(inside)) <= SOCKET_PATH_LIMIT:
        return inside
    digest = hashlib.sha256(os.fsencode(run)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"steerguard-{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise Problem(f"{folder} belongs to someone else: set DATA_DIR to a shorter path.")
    return folder / "valkey.sock"


def _own_secret(path: Path) -> str:
    """Read a secret of this installation, or make it: 256 bits, readable by the owner only."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
    except FileExistsError:
        pass
    return path.read_text().strip()
