"""How a process of the product ends: never later than the one that started it.

A supervisor that is killed with SIGKILL can't stop its children. On Linux the kernel does it for us: each child
asks to be signalled when its parent dies (prctl(2), PR_SET_PDEATHSIG; kept across exec, dropped across fork).
Elsewhere only the orderly ways of stopping work.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
# How long what a stopped leader leaves behind may take to follow it.
LAST_WORDS_S = 2.0


def end_with_parent(signal_number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send this process `signal_number` when its parent dies. Safe between fork and exec."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def end_group(process: subprocess.Popen[bytes], *, patience_s: float) -> int:
    """Stop a session leader and all that it started; return its exit status.

    The leader gets SIGTERM first, alone, so that it can stop its own children in its own order. Whatever of its
    process group is left after `patience_s` gets SIGKILL.
    """
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    if not _await_no_group(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _await_no_group(process.pid)
    return process.wait()


def how_it_ended(status: int) -> str:
    """What to say of a process that nobody here stopped. vLLM exits with 0 when somebody kills a part of it."""
    if status < 0:
        try:
            return f"was killed ({signal.Signals(-status).name})"
        except ValueError:
            return f"was killed (signal {-status})"
    return f"crashed (exit code {status})" if status else "ended without being told to (exit code 0)"


def _await_no_group(group: int) -> bool:
    deadline = time.monotonic() + LAST_WORDS_S
    while group_exists(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def group_exists(group: int) -> bool:
    """Whether any process of the group is left (a zombie counts until it is reaped)."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
