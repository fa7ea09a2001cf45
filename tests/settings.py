"""The product's settings with every path in a fresh temporary folder, so that tests touch nobody's data.

DATABASE_URL chooses the database, as it does for the product; without it, tests get a SQLite file (an in-memory
database would be another one in every thread). Valkey is started by tests/conftest.py at the socket named here.
"""

import os
import tempfile

# Short on purpose: the path of a unix socket has about a hundred characters.
TEST_DIR = tempfile.mkdtemp(prefix="steerguard-tests-")
os.environ["DATA_DIR"] = TEST_DIR
os.environ["REDIS_URL"] = f"unix://{TEST_DIR}/valkey.sock"
os.environ["SECRET_KEY"] = "only for tests"

from config.settings import *  # noqa: E402, F403
from config.settings import DATABASES  # noqa: E402

DATABASES["default"]["TEST"] = (
    {"NAME": f"{TEST_DIR}/test.sqlite3"} if DATABASES["default"]["ENGINE"].endswith("sqlite3") else {}
)
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # quick
