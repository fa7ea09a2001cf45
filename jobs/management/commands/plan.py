"""`manage.py plan --model llama-3.1-8b --gpu-gib 80 --personas 50`: how many personas fit, and what they cost."""

import io
import json
import shutil
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.planner import articles, published, report
from jobs.planner.calibration import BASE, LORA, STEERED, Calibration, Check, read_calibration
from jobs.planner.errors import PlanError
from jobs.planner.inputs import INPUTS, find_calibration, read_question
from jobs.planner.plan import Plan, make_plan

FIGURES = {"tokens_per_s": "tokens/s", "inter_token_ms": "between tokens, ms", "ttft_ms": "first token, ms"}


class Command(BaseCommand):
    help = (
        "Plan an installation: memory, waiting and cost of personas by adapters and by steering. See docs/planner.md."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        for one in INPUTS:
            option = "--" + one.name.replace("_", "-")
            if one.kind == "bool":
                parser.add_argument(
                    option, action="store_const", const="1", default="", help=f"{one.label}: {one.help}"
                )
                continue
            among = f"; {', '.join(filter(None, one.choices))}" if one.choices else ""
            more = {"model": ", or a folder with a config.json", "modules": ", or some of q_proj,k_proj,…"}.get(
                one.name, ""
            )
            default = f" (default: {one.default})" if one.default else ""
            text = f"{one.label}: {one.help}{among}{more}{default}".replace("%", "%%")
            parser.add_argument(option, metavar=one.kind.upper(), default="", help=text)
        parser.add_argument("--calibration", type=Path, help="a file of make bench-steering to take speeds from")
        parser.add_argument("--no-calibration", action="store_true", help="speeds at best, measured or not")
        parser.add_argument("--json", action="store_true", help="print every figure as JSON, in bytes and seconds")
        parser.add_argument("--checks", action="store_true", help="print predictions beside what was measured instead")
        parser.add_argument("--published", action="store_true", help="print what others published instead")
        parser.add_argument(
            "--articles", action="store_true", help="print the articles' arithmetic, done again, instead"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        width = shutil.get_terminal_size((80, 24)).columns
        console = Console(file=io.StringIO(), highlight=False, force_terminal=self.stdout.isatty(), width=width)
        try:
            if options["articles"]:
                print_findings(console)
            elif options["published"]:
                print_published(console, self._own_calibration(options))
            elif options["checks"]:
                print_checks(console, self._own_calibration(options))
            elif options["json"]:
                console.out(json.dumps(report.as_json(self._plan(options)), indent=2))
            else:
                print_plan(console, self._plan(options))
        except PlanError as error:
            option = "--" + error.field.replace("_", "-")
            raise CommandError(f"{option}: expected {error.expected}, found {error.found}") from None
        self.stdout.write(console.file.getvalue())  # type: ignore[attr-defined]

    def _plan(self, options: dict[str, Any]) -> Plan:
        question = read_question({one.name: options[one.name] for one in INPUTS}, allow_paths=True)
        if options["no_calibration"]:
            return make_plan(question)
        return make_plan(question, find_calibration(question.shape, options["calibration"]))

    def _own_calibration(self, options: dict[str, Any]) -> Calibration | None:
        if options["calibration"]:
            return read_calibration(options["calibration"])
        try:
            return read_calibration()
        except PlanError:
            return None


def print_plan(console: Console, plan: Plan) -> None:
    facts = Table.grid(padding=(0, 2))
    for name, value in report.summarize(plan):
        facts.add_row(Text(name, style="bold"), Text(value))
    console.print(facts)
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("")
    for way in plan.ways:
        table.add_column(way.name.replace(", ", ",\n"), justify="right", no_wrap=True)
    for section in report.sections(plan):
        table.add_row("", *[""] * len(plan.ways))
        table.add_row(Text(section.title, style="bold"))
        for row in section.rows:
            table.add_row(Text(row.label), *map(Text, row.cells))
    console.print()
    console.print(table)
    console.print()
    for note in (*plan.notes, plan.speed_note):
        console.print(Text(f"• {note}"))


def print_checks(console: Console, calibration: Calibration | None) -> None:
    """Each measured batch size, left out of the fit once, and predicted."""
    if calibration is None:
        raise PlanError("checks", "a benchmark of this installation: run make bench-steering", "none")
    console.print(Text(f"{calibration.model}, {calibration.machine}, {calibration.measured_at[:10]}"))
    console.print(Text("Each batch size predicted from the others / measured; ✗: off by over 10 %\n"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("batch")
    for column in FIGURES.values():
        table.add_column(column, justify="right", no_wrap=True)
    for name in (BASE, STEERED, LORA):
        checks = calibration.checks(name)
        for batch in dict.fromkeys(check.batch for check in checks):
            of_batch = {check.figure: check for check in checks if check.batch == batch}
            cells = [_show_check(of_batch[figure]) for figure in FIGURES]
            beyond = "" if of_batch["tokens_per_s"].inside else "*"
            table.add_row(name, f"{batch}{beyond}", *cells)
    console.print(table)
    console.print(Text("\n* beyond the batch sizes it is predicted from"))


def _show_check(check: Check) -> str:
    return f"{check.predicted:.0f} / {check.measured:.0f} {check.error:+.0%} {' ' if check.holds else '✗'}"


def print_published(console: Console, calibration: Calibration | None) -> None:
    console.print(Text("Never compare rows: machines, models, versions and loads differ."))
    for row in (*published.PUBLISHED, *published.measured_rows(calibration)):
        console.print()
        console.print(Text(f"{row.system}{' (measured here)' if row.measured else ''}", style="bold"))
        for text in (row.figure, row.conditions, row.source):
            console.print(Text(f"  {text}"))


def print_findings(console: Console) -> None:
    article = ""
    for finding in articles.findings():
        if finding.article != article:
            article = finding.article
            console.print(Text(f"\n{article}", style="bold"))
        verdict = "adds up" if finding.adds_up else "does not add up"
        console.print(Text(f"\n“{finding.sentence}”: {verdict}"))
        console.print(Text(f"  {finding.recomputed}"))
