"""Engines: the inference servers of the fleet, as the operator registered them and as last seen."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

from inference import secret_text
from personas.models import Tenant

validate_engine_name = RegexValidator(
    r"^[a-z0-9][a-z0-9.-]{0,62}\Z", "Use lowercase letters, digits, dots and hyphens."
)


def validate_engine_url(url: str) -> None:
    """Scheme, host and port. Django's own URLValidator refuses the host names that Docker and Kubernetes give."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.username is not None or parts.query or parts.fragment:
        raise ValidationError("Use scheme, host and port, such as http://10.0.0.5:8000.")


class Engine(models.Model):
    """One running vLLM with the plugin, known by its URL.

    The fields from `status` on are observations: only the reconciler writes them. `status_detail` is shown to
    everybody who signs in, so it never names a tenant or what a tenant owns.
    """

    class Status(models.TextChoices):
        UNKNOWN = "unknown"  # not looked at yet
        STARTING = "starting"  # loading its model, or not all wanted vectors are there yet
        READY = "ready"  # answers, and every wanted vector is there
        UNREACHABLE = "unreachable"
        INCOMPATIBLE = "incompatible"  # answers, but can't serve these personas

    name = models.CharField(max_length=63, unique=True, validators=[validate_engine_name])
    url = models.CharField(max_length=300, validators=[validate_engine_url])
    encrypted_api_key = models.TextField(blank=True, editable=False)
    expected_base_model = models.CharField(
        max_length=300, blank=True, help_text="The model that it has to serve; blank: whichever it serves"
    )
    enabled = models.BooleanField(default=True)
    registered_at = models.DateTimeField(default=timezone.now, editable=False)

    status = models.CharField(max_length=12, choices=Status.choices, default=Status.UNKNOWN, editable=False)
    status_detail = models.CharField(max_length=300, blank=True, editable=False)
    base_model = models.CharField(max_length=300, blank=True, editable=False)
    boot_id = models.CharField(max_length=100, blank=True, editable=False)
    hidden_size = models.PositiveIntegerField(null=True, blank=True, editable=False)
    num_layers = models.PositiveIntegerField(null=True, blank=True, editable=False)
    placed_digests = models.JSONField(
        default=list, blank=True, editable=False, help_text="Vectors that we put there during this boot"
    )
    last_seen_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def api_key(self) -> str:
        """The engine's own key, decrypted; empty when it has none. Raises secret_text.Unreadable."""
        return secret_text.decrypt(self.encrypted_api_key) if self.encrypted_api_key else ""

    @api_key.setter
    def api_key(self, text: str) -> None:
        self.encrypted_api_key = secret_text.encrypt(text) if text else ""


class UsageDay(models.Model):
    """What a tenant used on one day (UTC), by persona and key. Names, not rows: it outlives both.

    `persona` is empty for the base model, `key` (a prefix) for the dashboard. inference/usage.py writes it.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="usage_days")
    persona = models.CharField(max_length=63, blank=True)
    key = models.CharField(max_length=8, blank=True)
    day = models.DateField()
    requests = models.PositiveBigIntegerField(default=0, help_text="That the limits let in")
    failures = models.PositiveBigIntegerField(default=0, help_text="Of the requests, those that ended in an error")
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_prompt_tokens = models.PositiveBigIntegerField(default=0, help_text="Of the prompts' tokens")
    completion_tokens = models.PositiveBigIntegerField(default=0)
    steered_tokens = models.PositiveBigIntegerField(default=0, help_text="Of prompts' and completions' tokens")

    class Meta:
        ordering: ClassVar = ["-day", "persona", "key"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "day", "persona", "key"], name="one_usage_row_per_day")
        ]

    def __str__(self) -> str:
        return f"{self.tenant} {self.persona or 'base model'} {self.day}"


class UsageBatch(models.Model):
    """A batch of counts that has been added to UsageDay: it is not added again."""

    id = models.UUIDField(primary_key=True)
    applied_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return str(self.id)
