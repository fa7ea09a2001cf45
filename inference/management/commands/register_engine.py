"""`manage.py register_engine`: make an engine known to the fleet. Running it again changes what was said."""

import os
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from inference.services import register_engine
from personas.errors import Refusal


class Command(BaseCommand):
    help = "Register an engine, or change one; without options, the one at ENGINE_URL with ENGINE_KEY."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--name", default="local", help="the engine's name (default: local)")
        parser.add_argument("--url", default=settings.ENGINE_URL, help="default: ENGINE_URL")
        key = parser.add_mutually_exclusive_group()
        key.add_argument("--key-env", metavar="VARIABLE", help="environment variable that holds its API key")
        key.add_argument("--key", help="its API key; visible to others on this machine, so prefer --key-env")
        parser.add_argument("--base-model", default="", help="refuse to use it while it serves another model than this")

    def handle(self, *args: Any, **options: Any) -> None:
        key = settings.ENGINE_KEY if options["key"] is None else options["key"]
        if options["key_env"]:
            if options["key_env"] not in os.environ:
                raise CommandError(f"--key-env: {options['key_env']} is not set")
            key = os.environ[options["key_env"]]
        try:
            engine = register_engine(
                name=options["name"],
                url=options["url"],
                api_key=key,
                expected_base_model=options["base_model"],
            )
        except Refusal as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"{engine.name} is registered at {engine.url}")
