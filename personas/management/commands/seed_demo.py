"""`manage.py seed_demo`: the demo's vectors, people, tenants and personas. Running it again repairs and updates."""

import os
import time
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from personas.demo import seeding
from personas.demo import vectors as demo_vectors
from personas.demo.catalog import Catalog, load_catalog
from personas.demo.credentials import credentials_path, read_credentials, write_credentials
from personas.demo.recipes import load_recipes
from personas.errors import Refusal
from steerguard.extraction.pairs import PairsError
from steerguard.vectors import base_model_name


class Command(BaseCommand):
    help = "Fill this installation with the demo: shared vectors, two tenants, fifty personas, a log-in."

    def add_arguments(self, parser: ArgumentParser) -> None:
        part = parser.add_mutually_exclusive_group()
        part.add_argument("--vectors-only", action="store_true", help="make and share the vectors, nothing else")
        part.add_argument("--people-only", action="store_true", help="make tenants, log-in and keys, nothing else")
        parser.add_argument("--model", default=settings.MODEL, help="folder or hub id (default: MODEL)")
        parser.add_argument(
            "--base-model",
            default=os.environ.get("SERVED_MODEL_NAME", ""),
            help="the name engines serve the model under (default: SERVED_MODEL_NAME, or the folder's name)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        started_s = time.monotonic()
        catalog = load_catalog()
        try:
            if not options["vectors_only"]:
                # First, because they take no time: somebody may want to log in while the vectors are made.
                self._seed_people(catalog)
            if options["people_only"]:
                return
            vectors = self._share_vectors(options["model"], options["base_model"])
            personas = 0
            if not options["vectors_only"]:
                personas = sum(seeding.seed_personas(tenant, vectors) for tenant in catalog.tenants)
        except (Refusal, PairsError, demo_vectors.ModelUnusable) as error:
            raise CommandError(str(error)) from None
        parts = [f"{len(vectors)} vectors"]
        if not options["vectors_only"]:
            parts.append(f"{personas} personas made or updated")
        self.stdout.write(f"Demo: {', '.join(parts)} · {time.monotonic() - started_s:.1f} s")

    def _share_vectors(self, model: str, base_model: str) -> dict[str, Any]:
        with ExtractionDisplay(self.stdout) as display:
            made = demo_vectors.make_vectors(
                load_recipes(),
                model=model,
                base_model=base_model or base_model_name(model),
                cache=Path(settings.DATA_DIR) / "vectors-cache",
                progress=display,
            )
        return seeding.store_vectors(made)

    def _seed_people(self, catalog: Catalog) -> None:
        path = credentials_path(Path(settings.DATA_DIR))
        credentials = read_credentials(path)
        try:
            demo_user = seeding.seed_users(credentials)
            for tenant in catalog.tenants:
                seeding.seed_tenant(tenant, demo_user=demo_user, credentials=credentials)
            seeding.name_first_persona(catalog, credentials)
        finally:
            # Whatever was made so far can't be read back from the database.
            write_credentials(path, credentials)


class ExtractionDisplay:
    """Shows how far the making of vectors is: a bar in a terminal, a line for each vector in a log."""

    def __init__(self, out: Any) -> None:
        self._out = out
        console = Console(stderr=True)
        self._is_live = console.is_terminal
        self._bar = Progress(
            TextColumn("      {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not self._is_live,
        )
        self._task = self._bar.add_task("Loading the model", total=None, start=False)

    def __enter__(self) -> "ExtractionDisplay":
        self._bar.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._bar.stop()

    def started(self, answers: int) -> None:
        self._bar.start_task(self._task)
        self._bar.update(self._task, total=answers)
        if not self._is_live:
            self._out.write("      Making vectors: loading the model")

    def reading(self, name: str, number: int, of: int) -> None:
        self._bar.update(self._task, description=f"Making vectors: {name}")
        if not self._is_live:
            self._out.write(f"      Making vectors: {number}/{of} {name}")

    def advanced(self, answers: int) -> None:
        self._bar.advance(self._task, answers)
