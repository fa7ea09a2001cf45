"""`make smoke` itself: the product as a newcomer starts it, every process real."""

import json
import os
import subprocess
import sys

import pytest

# What the test run sets for itself, and the product must not see.
OF_THE_TEST_RUN = ("DATA_DIR", "DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_product_starts_steers_and_leaves_nothing_behind() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in OF_THE_TEST_RUN}
    smoke = subprocess.run(
        [sys.executable, "-m", "deploy.local.smoke"], env=environment, capture_output=True, text=True, check=False
    )
    assert smoke.returncode == 0, smoke.stdout[-3000:] + smoke.stderr[-3000:]
    said = json.loads(smoke.stdout.splitlines()[-1])
    assert said["ok"] is True
    assert said["cold_start_s"] > 0
    assert said["first_token_ms"] > 0
    assert said["steered"] != said["unsteered"]
