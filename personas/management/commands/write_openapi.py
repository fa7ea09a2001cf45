"""`manage.py write_openapi`: write docs/openapi.yaml from the code, or say that it is not what the code says."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from personas.api.openapi import generate


class Command(BaseCommand):
    help = "Write docs/openapi.yaml, the OpenAPI document of /api/v1 and /v1."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="only say whether it is up to date")

    def handle(self, *args: Any, **options: Any) -> None:
        path = Path(settings.BASE_DIR) / "docs" / "openapi.yaml"
        text = generate()
        if options["check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                raise CommandError("docs/openapi.yaml is not what the code says: run `make openapi`")
            return
        path.write_text(text, encoding="utf-8")
        self.stdout.write(f"{path.relative_to(settings.BASE_DIR)}: {len(text.splitlines())} lines")
