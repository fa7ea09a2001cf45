"""What would stop `make run` later, found out before anything long starts."""

import shutil

from deploy.local.environment import Environment
from deploy.local.ports import check_ports
from deploy.local.problem import Problem
from deploy.local.valkey import check_redis, check_unlocked

NEEDED_GIB = 0.5


def check(environment: Environment) -> None:
    """Raise the first `Problem` found."""
    free_gib = shutil.disk_usage(environment.data_dir).free / 2**30
    if free_gib < NEEDED_GIB:
        raise Problem(f"Only {free_gib:.1f} GiB are free at {environment.data_dir}; free some space first.")
    if environment.valkey_socket is not None:
        check_unlocked(environment)
    else:
        check_redis(environment)
    check_ports(environment)
