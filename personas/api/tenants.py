"""Tenants, their members and their keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.db.models import F, Q, QuerySet, Value
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from personas import services
from personas.api import shapes
from personas.api.authentication import Role
from personas.api.documented import operation
from personas.api.views import ApiView, TenantView, require_some
from personas.errors import NameTaken, UnknownUser
from personas.models import ApiKey, Membership, Tenant

LIMITS = {
    "requests_per_minute": 600,
    "tokens_per_minute": None,
    "concurrent_requests": 20,
    "tokens_per_day": None,
    "tokens_per_month": 50_000_000,
}
TENANT_EXAMPLE = {
    "slug": "acme",
    "name": "Acme",
    "role": "owner",
    "allows_base_model": True,
    "logs_prompts": False,
    "limits": LIMITS,
    "created_at": "2026-12-01T09:00:00Z",
}
KEY_EXAMPLE: dict[str, Any] = {
    "prefix": "k3v9x0ab",
    "name": "backend",
    "scopes": ["inference"],
    "personas": ["support"],
    "limits": LIMITS,
    "created_at": "2026-12-01T09:00:00Z",
    "expires_at": "2027-12-01T00:00:00Z",
    "revoked_at": None,
    "last_used_at": None,
}
ISSUED_EXAMPLE = {**KEY_EXAMPLE, "key": "sg_k3v9x0ab_…"}


class TenantsView(ApiView):
    """The caller's tenants."""

    @operation(
        "list_tenants",
        "The tenants that the caller is a member of",
        tag="tenants",
        returns=shapes.TenantShape(many=True),
        query=shapes.TenantQuery,
    )
    def get(self, request: Request) -> Response:
        return self.page(self._mine(), shapes.TenantQuery, shapes.TenantShape, tie="slug")

    @operation(
        "create_tenant",
        "Create a tenant (staff)",
        tag="tenants",
        body=shapes.TenantInput,
        returns=shapes.TenantShape,
        status=201,
        is_post=True,
        example={"slug": "acme", "name": "Acme", "owner": "alice"},
        answer=TENANT_EXAMPLE,
    )
    def post(self, request: Request) -> Response:
        self.require_staff()
        said = self.body(shapes.TenantInput)
        owner = _user(said["owner"], "owner") if "owner" in said else self.actor
        tenant = services.create_tenant(slug=said["slug"], name=said["name"], owner=owner, actor=self.actor)
        return Response(shapes.TenantShape(_with_role(tenant, Role.OWNER)).data, 201)

    def _mine(self) -> QuerySet[Tenant]:
        key, user = self.caller.key, self.caller.user
        if key is not None:
            role = Role.OWNER if ApiKey.Scope.MANAGE in key.scopes else Role.VIEWER
            return Tenant.objects.filter(pk=key.tenant_id).annotate(role=Value(role.value))
        assert user is not None
        return Tenant.objects.visible_to(user).annotate(role=F("memberships__role"))


class TenantDetailView(TenantView):
    """One tenant."""

    roles: ClassVar = {"GET": Role.VIEWER, "PATCH": Role.OWNER}

    @operation(
        "get_tenant", "A tenant", tag="tenants", returns=shapes.TenantShape, failures=[404], answer=TENANT_EXAMPLE
    )
    def get(self, request: Request, tenant: str) -> Response:
        return Response(shapes.TenantShape(_with_role(self.tenant, self.role)).data)

    @operation(
        "update_tenant",
        "Change a tenant's name, limits and rules (owner)",
        tag="tenants",
        body=shapes.TenantChanges,
        returns=shapes.TenantShape,
        failures=[404],
        example={"logs_prompts": False, "limits": {"requests_per_minute": 600}},
        answer=TENANT_EXAMPLE,
    )
    def patch(self, request: Request, tenant: str) -> Response:
        said = self.body(shapes.TenantChanges)
        require_some(said, shapes.TenantChanges)
        changed = services.update_tenant(tenant=self.tenant, actor=self.actor, **said)
        return Response(shapes.TenantShape(_with_role(changed, self.role)).data)


class MembersView(TenantView):
    """The people of a tenant."""

    roles: ClassVar = {"GET": Role.VIEWER, "POST": Role.OWNER}

    @operation(
        "list_members",
        "The people of a tenant",
        tag="members",
        returns=shapes.MemberShape(many=True),
        query=shapes.MemberQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = self.tenant.memberships.select_related("user").annotate(username=F("user__username"))
        return self.page(rows, shapes.MemberQuery, shapes.MemberShape, tie="username")

    @operation(
        "add_member",
        "Add a person (owner)",
        tag="members",
        body=shapes.MemberInput,
        returns=shapes.MemberShape,
        status=201,
        is_post=True,
        failures=[404],
        example={"user": "bob", "role": "editor"},
        answer={"user": "bob", "role": "editor"},
    )
    def post(self, request: Request, tenant: str) -> Response:
        said = self.body(shapes.MemberInput)
        user = _user(said["user"], "user")
        if self.tenant.memberships.filter(user=user).exists():
            raise NameTaken("user", f"somebody who is not a member of {self.tenant.slug} yet", user.get_username())
        member = services.add_member(tenant=self.tenant, user=user, role=said["role"], actor=self.actor)
        return Response(shapes.MemberShape(member).data, 201)


class MemberView(TenantView):
    """One person of a tenant."""

    roles: ClassVar = {"GET": Role.VIEWER, "PATCH": Role.OWNER, "DELETE": Role.OWNER}

    @operation("get_member", "A person's place", tag="members", returns=shapes.MemberShape, failures=[404])
    def get(self, request: Request, tenant: str, user: str) -> Response:
        return Response(shapes.MemberShape(self._member(user)).data)

    @operation(
        "change_member",
        "Change a person's role (owner)",
        tag="members",
        body=shapes.MemberChanges,
        returns=shapes.MemberShape,
        failures=[404, 409],
        example={"role": "viewer"},
    )
    def patch(self, request: Request, tenant: str, user: str) -> Response:
        member = self._member(user)
        said = self.body(shapes.MemberChanges)
        changed = services.add_member(tenant=self.tenant, user=member.user, role=said["role"], actor=self.actor)
        return Response(shapes.MemberShape(changed).data)

    @operation("remove_member", "Remove a person (owner)", tag="members", status=204, failures=[404, 409])
    def delete(self, request: Request, tenant: str, user: str) -> Response:
        services.remove_member(tenant=self.tenant, user=self._member(user).user, actor=self.actor)
        return Response(status=204)

    def _member(self, username: str) -> Membership:
        member: Membership = self.find(self.tenant.memberships.select_related("user"), user__username=username)
        return member


class KeysView(TenantView):
    """A tenant's keys."""

    roles: ClassVar = {"GET": Role.OWNER, "POST": Role.OWNER}
    answers_with_secret = True

    @operation(
        "list_keys",
        "A tenant's keys, without their texts (owner)",
        tag="keys",
        returns=shapes.KeyShape(many=True),
        query=shapes.KeyQuery,
        failures=[404],
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = self.tenant.api_keys.all()
        said = self.query(shapes.KeyQuery)
        if "valid" in said:
            is_valid = Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=timezone.now()))
            rows = rows.filter(is_valid if said["valid"] else ~is_valid)
        if "scope" in said:
            # SQLite has no lookup for a member of a JSON list; a tenant has a bounded number of keys.
            rows = rows.filter(pk__in=[key.pk for key in rows if said["scope"] in key.scopes])
        return self.page(rows, shapes.KeyQuery, shapes.KeyShape, tie="prefix")

    @operation(
        "issue_key",
        "Issue a key (owner)",
        tag="keys",
        body=shapes.KeyInput,
        returns=shapes.IssuedKeyShape,
        status=201,
        is_post=True,
        failures=[404],
        description="The answer has the key's text, this once. It is stored nowhere, so asking again with the same "
        "`Idempotency-Key` issues no second key and is a 409.",
        example={"name": "backend", "scopes": ["inference"], "personas": ["support"]},
        answer=ISSUED_EXAMPLE,
    )
    def post(self, request: Request, tenant: str) -> Response:
        said = self.body(shapes.KeyInput)
        key, text = services.issue_api_key(tenant=self.tenant, actor=self.actor, **said)
        return Response(_issued(key, text), 201)


class KeyView(TenantView):
    """One key."""

    roles: ClassVar = {"GET": Role.OWNER, "PATCH": Role.OWNER}

    @operation(
        "get_key",
        "A key, without its text (owner)",
        tag="keys",
        returns=shapes.KeyShape,
        failures=[404],
        answer=KEY_EXAMPLE,
    )
    def get(self, request: Request, tenant: str, prefix: str) -> Response:
        return Response(shapes.KeyShape(self.find(self.tenant.api_keys.all(), prefix=prefix)).data)

    @operation(
        "update_key",
        "Change a key's name and limits (owner)",
        tag="keys",
        body=shapes.KeyChanges,
        returns=shapes.KeyShape,
        failures=[404],
        example={"name": "backend, staging", "limits": {"requests_per_minute": 60}},
        answer=KEY_EXAMPLE,
    )
    def patch(self, request: Request, tenant: str, prefix: str) -> Response:
        key = self.find(self.tenant.api_keys.all(), prefix=prefix)
        said = self.body(shapes.KeyChanges)
        require_some(said, shapes.KeyChanges)
        return Response(shapes.KeyShape(services.update_api_key(key=key, actor=self.actor, **said)).data)


class KeyRotationView(TenantView):
    """Replacing a key by one that may do the same."""

    roles: ClassVar = {"POST": Role.OWNER}
    answers_with_secret = True

    @operation(
        "rotate_key",
        "Issue a key's successor and end the key (owner)",
        tag="keys",
        body=shapes.RotationInput,
        returns=shapes.IssuedKeyShape,
        status=201,
        is_post=True,
        failures=[404],
        description="The successor may do what the key may. The key ends after `grace_s`.",
        example={"grace_s": 3600},
        answer=ISSUED_EXAMPLE,
    )
    def post(self, request: Request, tenant: str, prefix: str) -> Response:
        key = self.find(self.tenant.api_keys.all(), prefix=prefix)
        grace = timedelta(seconds=self.body(shapes.RotationInput)["grace_s"])
        successor, text = services.rotate_api_key(key=key, grace=grace, actor=self.actor)
        return Response(_issued(successor, text), 201)


class KeyRevocationView(TenantView):
    """Ending a key."""

    roles: ClassVar = {"POST": Role.OWNER}

    @operation(
        "revoke_key",
        "End a key at once (owner)",
        tag="keys",
        returns=shapes.KeyShape,
        is_post=True,
        failures=[404],
        description="Revoking a revoked key changes nothing.",
    )
    def post(self, request: Request, tenant: str, prefix: str) -> Response:
        key = self.find(self.tenant.api_keys.all(), prefix=prefix)
        return Response(shapes.KeyShape(services.revoke_api_key(key=key, actor=self.actor)).data)


def _issued(key: ApiKey, text: str) -> Mapping[str, Any]:
    return {**shapes.KeyShape(key).data, "key": text}


def _with_role(tenant: Tenant, role: Role) -> Tenant:
    tenant.role = role.value  # type: ignore[attr-defined]
    return tenant


def _user(name: str, field: str) -> User:
    """Raises UnknownUser. Whoever may add people learns so who is a user; of what, they don't."""
    user = User.objects.filter(username=name, is_active=True).first()
    if user is None:
        raise UnknownUser(field, "the name of somebody who may sign in", name[:80])
    return user
