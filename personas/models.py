"""What a tenant owns. Models hold data and invariants; every change is a function in personas/services.py.

Nothing here is looked up by primary key from outside: querysets named `visible_to` and `usable_by` are the
one place where "whose is it" is decided.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from personas.errors import RevisionIsImmutable

SLUG_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}\Z"
SLUG_RULE = "at most 63 lowercase letters, digits and inner hyphens"
DIGEST_PATTERN = r"^[0-9a-f]{64}\Z"

validate_slug = RegexValidator(SLUG_PATTERN, f"Use {SLUG_RULE}.")
validate_digest = RegexValidator(DIGEST_PATTERN, "Use the 64 hexadecimal digits of a SHA-256.")

AnyUser = AbstractBaseUser | AnonymousUser


class Positions(models.TextChoices):
    """Which tokens are steered; `response` starts at the last prompt token."""

    ALL = "all"
    PROMPT = "prompt"
    RESPONSE = "response"


class Limits(models.Model):
    """How much may be asked for. None is no limit; a key's limits hold beside its tenant's."""

    requests_per_minute = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    concurrent_requests = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    tokens_per_month = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])

    class Meta:
        abstract = True


LIMIT_NAMES = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "tokens_per_day",
    "tokens_per_month",
)


class TenantQuerySet(models.QuerySet["Tenant"]):
    def visible_to(self, user: AnyUser) -> TenantQuerySet:
        """The tenants that `user` is a member of; being staff opens the admin, not other people's pages."""
        return self.filter(memberships__user_id=user.pk) if user.is_authenticated else self.none()


class Tenant(Limits):
    """An isolated customer. Owns everything but engines and shared vectors."""

    slug = models.CharField(max_length=63, unique=True, validators=[validate_slug])
    name = models.CharField(max_length=200)
    allows_base_model = models.BooleanField(default=True, help_text="Keys may ask the base model itself, unsteered")
    logs_prompts = models.BooleanField(default=False, help_text="Prompts and answers are written to the log")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["slug"]

    def __str__(self) -> str:
        return self.slug


class Membership(models.Model):
    """A person's place in a tenant."""

    class Role(models.TextChoices):
        OWNER = "owner"
        EDITOR = "editor"
        VIEWER = "viewer"

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "tenant"], name="one_membership_per_tenant")]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.tenant}"

    @property
    def may_edit(self) -> bool:
        """May change personas and vectors."""
        return self.role in (self.Role.OWNER, self.Role.EDITOR)

    @property
    def may_manage(self) -> bool:
        """May change members and API keys."""
        return self.role == self.Role.OWNER


def default_scopes() -> list[str]:
    return [ApiKey.Scope.INFERENCE.value]


class ApiKey(Limits):
    """A program's way in: the prefix finds the row, the digest proves the secret (personas/api_keys.py)."""

    class Scope(models.TextChoices):
        INFERENCE = "inference"  # /v1: ask personas
        READ = "read"  # /api/v1: look at what the tenant owns
        MANAGE = "manage"  # /api/v1: and change it, as an owner may

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=8, unique=True)
    digest = models.CharField(max_length=64, validators=[validate_digest])
    scopes = models.JSONField(default=default_scopes, help_text="Some of inference, read, manage")
    personas = models.JSONField(null=True, blank=True, help_text="Slugs that it may ask; null: all, base models too")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="To some seconds")

    class Meta:
        ordering: ClassVar = ["-created_at"]

    def __str__(self) -> str:
        return f"sg_{self.prefix}_… ({self.name})"

    def is_valid(self, at: datetime | None = None) -> bool:
        """Neither revoked nor expired."""
        at = at or timezone.now()
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)


class SteeringVectorQuerySet(models.QuerySet["SteeringVector"]):
    def usable_by(self, tenant: Tenant | None) -> SteeringVectorQuerySet:
        """The tenant's own and the shared ones. To a tenant, all other vectors don't exist."""
        shared = Q(tenant=None)
        return self.filter(shared if tenant is None else shared | Q(tenant=tenant))

    def in_use(self) -> SteeringVectorQuerySet:
        """Those that some draft or revision names: old revisions too, since requests may pin one (`@3`)."""
        revisions = PersonaRevision.vectors.through.objects.filter(steeringvector_id=models.OuterRef("pk"))
        drafts = Persona.draft_vectors.through.objects.filter(steeringvector_id=models.OuterRef("pk"))
        return self.filter(models.Exists(revisions) | models.Exists(drafts))


class SteeringVector(models.Model):
    """A vector that personas can be made of: a row here, its numbers in a file named by their digest.

    `name` is the skill it is asked for by; a newer upload may take the same name, so a blend always holds the
    digest. `tenant` is null for a vector that the operator shares with everybody.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="vectors")
    name = models.CharField(max_length=63, validators=[validate_slug])
    description = models.TextField(blank=True, max_length=2000)
    base_model = models.CharField(max_length=300)
    hidden_size = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    layers = models.JSONField(help_text="0-based decoder-block indices, ascending")
    digest = models.CharField(max_length=64, validators=[validate_digest])
    norms = models.JSONField(help_text="L2 norm of each layer's array, by layer")
    recommended_alpha = models.FloatField(null=True, blank=True)
    recommended_positions = models.CharField(max_length=10, choices=Positions.choices, default=Positions.ALL)
    source = models.JSONField(default=dict, blank=True, help_text="Where it was made, and how")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = SteeringVectorQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["name", "-created_at"]
        indexes: ClassVar = [
            models.Index(fields=["digest"], name="vector_by_digest"),
            models.Index(fields=["base_model"], name="vector_by_base_model"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "digest"], name="one_vector_per_tenant_and_digest"),
            models.UniqueConstraint(fields=["digest"], condition=Q(tenant=None), name="one_shared_vector_per_digest"),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:12]})"


class Adapter(models.Model):
    """A LoRA adapter of a tenant's: a row here, its two files in a folder named by their digest.

    A newer upload may take the same `name`, as with vectors.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=63, validators=[validate_slug])
    description = models.TextField(blank=True, max_length=2000)
    base_model = models.CharField(max_length=300)
    digest = models.CharField(max_length=64, validators=[validate_digest])
    engine_id = models.CharField(max_length=64, unique=True, editable=False, help_text="What engines call it")
    rank = models.PositiveIntegerField(validators=[MinValueValidator(1)], help_text="The largest of any module")
    target_modules = models.JSONField(help_text="Last parts of the names of modules that it changes")
    num_parameters = models.PositiveBigIntegerField()
    size_bytes = models.PositiveBigIntegerField(help_text="Of the stored files")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering: ClassVar = ["name", "-created_at"]
        indexes: ClassVar = [models.Index(fields=["digest"], name="adapter_by_digest")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "digest"], name="one_adapter_per_tenant_and_digest")
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:12]})"


class PersonaQuerySet(models.QuerySet["Persona"]):
    def visible_to(self, user: AnyUser) -> PersonaQuerySet:
        """The personas of the tenants that `user` is a member of."""
        return self.filter(tenant__in=Tenant.objects.visible_to(user))


class Persona(models.Model):
    """A named, versioned behavior. `draft` is what its author works on, `published` what requests get."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="personas")
    slug = models.CharField(max_length=63, validators=[validate_slug])
    name = models.CharField(max_length=200)
    description = models.TextField(blank=True, max_length=2000)
    draft = models.JSONField(default=dict, blank=True, help_text="See personas/definition.py")
    draft_vectors = models.ManyToManyField(SteeringVector, related_name="draft_personas", blank=True, editable=False)
    published = models.ForeignKey(
        "PersonaRevision", models.SET_NULL, null=True, blank=True, editable=False, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = PersonaQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["tenant__slug", "slug"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "slug"], name="one_persona_per_tenant_and_slug")
        ]

    def __str__(self) -> str:
        return self.model_name

    def clean(self) -> None:
        if self.published is not None and self.published.persona_id != self.pk:
            raise ValidationError({"published": "A persona publishes its own revisions only."})

    @property
    def model_name(self) -> str:
        """What the persona is called in the `model` field of a request."""
        return f"{self.tenant.slug}/{self.slug}"

    @property
    def has_unpublished_changes(self) -> bool:
        """The draft differs from what requests get."""
        return self.published is None or self.published.definition != self.draft


class PersonaRevisionQuerySet(models.QuerySet["PersonaRevision"]):
    def update(self, **kwargs: Any) -> int:
        raise RevisionIsImmutable

    def bulk_update(self, *args: Any, **kwargs: Any) -> int:
        raise RevisionIsImmutable


class PersonaRevision(models.Model):
    """An immutable, numbered snapshot of a persona. Requests are served by, and logged with, a revision."""

    persona = models.ForeignKey(Persona, models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    definition = models.JSONField(help_text="See personas/definition.py")
    vectors = models.ManyToManyField(SteeringVector, related_name="revisions", editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = PersonaRevisionQuerySet.as_manager()

    class Meta:
        ordering: ClassVar = ["persona", "-number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["persona", "number"], name="one_revision_per_persona_and_number"),
            models.CheckConstraint(condition=Q(number__gte=1), name="revisions_count_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.persona.model_name}@{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise RevisionIsImmutable
        super().save(*args, **kwargs)


class AuditEvent(models.Model):
    """Who did what to what. `tenant` is null for the operator's own doings, `actor` for a command's."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="audit_events")
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")
    action = models.CharField(max_length=50)
    target = models.CharField(max_length=200)
    detail = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering: ClassVar = ["-at", "-pk"]
        indexes: ClassVar = [models.Index(fields=["tenant", "-at"], name="audit_by_tenant")]

    def __str__(self) -> str:
        return f"{self.action} {self.target}"


class IdempotentAnswer(models.Model):
    """What a POST with an `Idempotency-Key` was answered (personas/api/idempotency.py). No status: under way."""

    caller = models.CharField(max_length=40, help_text="user:… or key:…")
    key_digest = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=64, help_text="Of the request")
    token = models.CharField(max_length=32, help_text="Whoever fills it has to know it")
    status = models.PositiveSmallIntegerField(null=True)
    body = models.TextField(blank=True)
    headers = models.JSONField(default=dict)
    is_secret = models.BooleanField(default=False, help_text="The answer was not stored")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["created_at"], name="idempotent_answer_by_age")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["caller", "key_digest"], name="one_answer_per_caller_and_key")
        ]

    def __str__(self) -> str:
        return f"{self.caller} {self.status or 'under way'}"
