"""`python -m steerguard adapters check`: may this adapter be served on that base model?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from steerguard.command_line import REFUSED, answer

if TYPE_CHECKING:
    from steerguard.command_line import Commands


def register(commands: "Commands") -> None:
    adapters = commands.add_parser("adapters", help="LoRA adapters").add_subparsers(dest="action", required=True)
    check = adapters.add_parser(
        "check",
        help="list what is wrong with an adapter, by field",
        description="Prints one JSON line: ok, and the problems by field. Exit status 2: there are problems.",
    )
    check.add_argument("path", type=Path, help="folder, .zip, .tar or .tar.gz of a PEFT adapter")
    check.add_argument("--base", type=Path, required=True, help="folder of the base model")
    check.add_argument("--max-lora-rank", type=int, required=True, help="the engine's max_lora_rank")
    check.add_argument(
        "--base-name", action="append", default=[], help="another name of the base model (may be repeated)"
    )
    check.add_argument(
        "--name-policy",
        choices=("exact", "basename"),
        default="basename",
        help="compare the base model's whole name, or the last part of it (default)",
    )
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from steerguard.adapters.check import NamePolicy, check_adapter

    problems = check_adapter(
        options.path,
        options.base,
        max_lora_rank=options.max_lora_rank,
        name_policy=NamePolicy(options.name_policy),
        base_names=options.base_name,
    )
    answer({"ok": not problems, "problems": [problem.as_json() for problem in problems]})
    return REFUSED if problems else 0
