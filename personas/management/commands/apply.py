"""`manage.py apply -f personas.yaml`: bring personas to what a file says. Applying it again changes nothing."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from personas import manifest
from personas.errors import Refusal
from personas.models import Tenant


class Command(BaseCommand):
    help = "Create, update and publish the personas of YAML files: all of a file or nothing of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("-f", "--file", action="append", required=True, help="a YAML file, or - for standard input")
        parser.add_argument("--tenant", help="whose personas these are; a file that names another tenant is refused")
        parser.add_argument("--dry-run", action="store_true", help="print what would change, and change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        for name in options["file"]:
            self._apply(name, options["tenant"], options["dry_run"])

    def _apply(self, name: str, tenant: str | None, dry_run: bool) -> None:
        try:
            text = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
            wanted = manifest.read(text, name="stdin" if name == "-" else name, tenant=tenant)
            slugs = [one.slug for one in wanted.tenants]
            tenants = {one.slug: one for one in Tenant.objects.filter(slug__in=slugs)}
            outcomes = manifest.apply(wanted, tenants=tenants, dry_run=dry_run)
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror}") from None
        except Refusal as error:
            raise CommandError(str(error)) from None
        for outcome in outcomes:
            if dry_run and outcome.diff:
                self.stdout.write(outcome.diff, ending="")
        for outcome in outcomes:
            self.stdout.write(f"{outcome.persona} {outcome.action}{' (dry run)' if dry_run else ''}")
