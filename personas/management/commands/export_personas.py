"""`manage.py export_personas acme > personas.yaml`: a file that `manage.py apply` takes."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from personas import manifest
from personas.models import Tenant


class Command(BaseCommand):
    help = "Print a tenant's personas, as drafts, as YAML."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("personas", nargs="*", help="slugs of personas (default: all)")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            raise CommandError(f"there is no tenant {options['tenant']}")
        personas = {persona.slug: persona for persona in tenant.personas.select_related("tenant", "published")}
        wanted = options["personas"] or list(personas)
        if missing := [slug for slug in wanted if slug not in personas]:
            raise CommandError(f"{tenant.slug} has no persona {', '.join(missing)}")
        self.stdout.write(manifest.export(tenant, [personas[slug] for slug in wanted]), ending="")
