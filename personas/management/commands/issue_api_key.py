"""`manage.py issue_api_key acme --name backend`: prints a new key, once."""

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from personas.errors import Refusal
from personas.models import Tenant
from personas.services import issue_api_key


class Command(BaseCommand):
    help = "Issue an API key for a tenant and print its text, which can't be had again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="the tenant's slug")
        parser.add_argument("--name", required=True, help="what the key is for")
        parser.add_argument("--days", type=int, help="days until it expires (default: never)")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if tenant is None:
            raise CommandError(f"there is no tenant {options['tenant']}")
        days = options["days"]
        expires_at = None if days is None else timezone.now() + timedelta(days=days)
        try:
            _key, text = issue_api_key(tenant=tenant, name=options["name"], expires_at=expires_at)
        except Refusal as error:
            raise CommandError(str(error)) from None
        self.stdout.write(text)
