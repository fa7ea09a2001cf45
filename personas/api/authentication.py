"""Who is asking: a person with a session, or a program with a key. Neither is told anything before it is proven."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import AnonymousUser, User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from personas.api_keys import find_api_key
from personas.models import ApiKey, Membership, Tenant

Role = Membership.Role
RANK = {Role.VIEWER: 0, Role.EDITOR: 1, Role.OWNER: 2}

KEY_REFUSED = "The key is unknown, expired or revoked."


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer sg_…`. `request.auth` is the key; `request.user` stays nobody."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, ApiKey] | None:
        scheme, _, text = str(request.META.get("HTTP_AUTHORIZATION", "")).partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = find_api_key(text.strip())
        if key is None:
            raise AuthenticationFailed(KEY_REFUSED)
        return AnonymousUser(), key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="steerguard"'


@dataclass(frozen=True)
class Caller:
    """Whoever asks, and what they may do in which tenant. A key has its own tenant only."""

    user: User | None
    key: ApiKey | None

    @property
    def name(self) -> str:
        """Tells callers apart; never shown."""
        return f"key:{self.key.pk}" if self.key else f"user:{self.user.pk if self.user else ''}"

    @property
    def is_staff(self) -> bool:
        """Runs the installation. That opens engines and new tenants, nobody's data; keys never do."""
        return self.user is not None and self.user.is_staff

    @property
    def may_look(self) -> bool:
        """False for a key that is for inference alone."""
        return self.key is None or bool({ApiKey.Scope.READ, ApiKey.Scope.MANAGE} & set(self.key.scopes))

    def find(self, slug: str) -> tuple[Tenant, Role | None] | None:
        """The tenant, if the caller belongs there, and the caller's role: None for a key of inference alone."""
        if self.key is not None:
            if self.key.tenant.slug != slug:
                return None
            if ApiKey.Scope.MANAGE in self.key.scopes:
                return self.key.tenant, Role.OWNER
            return self.key.tenant, Role.VIEWER if ApiKey.Scope.READ in self.key.scopes else None
        membership = Membership.objects.select_related("tenant").filter(user=self.user, tenant__slug=slug).first()
        return (membership.tenant, Role(membership.role)) if membership else None


def caller_of(request: Request) -> Caller | None:
    """None for somebody who is neither signed in nor has a key."""
    if isinstance(request.auth, ApiKey):
        return Caller(user=None, key=request.auth)
    return Caller(user=request.user, key=None) if isinstance(request.user, User) else None


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """What the OpenAPI document says of keys."""

    target_class = KeyAuthentication
    name = "key"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A key, `sg_…`, with the scope `read` or `manage`."}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """What the OpenAPI document says of sessions."""

    target_class = SessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "A signed-in browser's session. Changes need the `X-CSRFToken` header too.",
        }
