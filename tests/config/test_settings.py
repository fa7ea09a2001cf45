"""Settings from the environment, each set read in a process of its own."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from config.settings import BASE_DIR

PRINT = """
import json, config.settings as s
print(json.dumps({name: getattr(s, name) for name in dir(s) if name.isupper()}, default=str))
"""


def settings_of(data_dir: Path, **environment: str) -> dict[str, Any]:
    clean = {"PATH": os.environ["PATH"], "DATA_DIR": str(data_dir), **environment}
    finished = subprocess.run(
        [sys.executable, "-c", PRINT], env=clean, cwd=BASE_DIR, check=True, capture_output=True, text=True
    )
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def test_everything_has_a_default_below_the_data_folder(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert settings["DATABASES"]["default"]["NAME"] == str(tmp_path / "db.sqlite3")
    assert settings["DATABASES"]["default"]["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert settings["REDIS_URL"] == f"unix://{tmp_path}/run/valkey.sock"
    assert settings["CELERY_BROKER_URL"] == f"redis+socket://{tmp_path}/run/valkey.sock"
    assert not settings["DEBUG"]


def test_the_data_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    settings_of(tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_real_servers_are_used_when_named(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path, DATABASE_URL="postgres://me:pw@db.example:5433/sg", REDIS_URL="redis://cache.example:6379/2"
    )
    database = settings["DATABASES"]["default"]
    assert database["ENGINE"] == "django.db.backends.postgresql"
    assert (database["HOST"], database["PORT"], database["NAME"]) == ("db.example", 5433, "sg")
    assert database["CONN_MAX_AGE"] == 0
    assert settings["CELERY_BROKER_URL"] == "redis://cache.example:6379/2"
    assert settings["CHANNEL_LAYERS"]["default"]["CONFIG"]["hosts"] == ["redis://cache.example:6379/2"]


def test_processes_that_start_at_once_agree_on_the_secret_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        keys = list(pool.map(lambda _: settings_of(tmp_path)["SECRET_KEY"], range(3)))
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 50
    assert stat.S_IMODE((tmp_path / "secret-key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret-key"]


def test_cookies_are_secure_behind_https(tmp_path: Path) -> None:
    assert not settings_of(tmp_path)["SESSION_COOKIE_SECURE"]
    settings = settings_of(tmp_path, HTTPS="1")
    assert settings["SESSION_COOKIE_SECURE"]
    assert settings["CSRF_COOKIE_SECURE"]
    assert settings["SECURE_HSTS_SECONDS"] > 0
