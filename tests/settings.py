"""The product's settings with every path in a fresh temporary folder, so that tests touch nobody's data.

DATABASE_URL chooses the database, as it does for the product; without it, tests get a SQLite file (an in-memory
database would be another one in every thread). Valkey is started by tests/conftest.py at the socket named here. With
pytest-xdist, each process reads this file and has its own of all of them.
"""

import atexit
import os
import shutil
import tempfile

# Short on purpose: the path of a unix socket has about a hundred characters.
TEST_DIR = tempfile.mkdtemp(prefix="steerguard-tests-")
_made_by = os.getpid()
atexit.register(lambda: shutil.rmtree(TEST_DIR, ignore_errors=True) if os.getpid() == _made_by else None)
os.environ["DATA_DIR"] = TEST_DIR
os.environ["REDIS_URL"] = f"unix://{TEST_DIR}/valkey.sock"
os.environ["SECRET_KEY"] = "only for tests"

from config.settings import *  # noqa: E402, F403
from config.settings import DATABASES  # noqa: E402

# A database that nobody else has, runs at the same time included. No test pulls the plug, so nothing waits for a disk.
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["TEST"] = {"NAME": f"{TEST_DIR}/test.sqlite3"}
    DATABASES["default"]["OPTIONS"] |= {
        "timeout": 60,  # seconds
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
    }
else:
    DATABASES["default"]["TEST"] = {"NAME": f"test_{TEST_DIR.rpartition('-')[2]}"}
    DATABASES["default"].setdefault("OPTIONS", {})["options"] = "-c synchronous_commit=off"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
