"""The operator's view of tenants. Every change goes through services, like everybody's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from personas import services
from personas.definition import parse_definition
from personas.errors import InvalidDefinition, Refusal
from personas.models import (
    ApiKey,
    AuditEvent,
    Membership,
    Persona,
    PersonaRevision,
    SteeringVector,
    Tenant,
)


class ServiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """An admin whose writes call services: a refusal becomes a message, and nothing is changed."""

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._answered(request, lambda: super(ServiceAdmin, self).changeform_view(request, *args, **kwargs))

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._answered(request, lambda: super(ServiceAdmin, self).changelist_view(request, *args, **kwargs))

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self._answered(request, lambda: super(ServiceAdmin, self).delete_view(request, *args, **kwargs))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for row in queryset:
            self.delete_model(request, row)

    def _answered(self, request: HttpRequest, view: Callable[[], HttpResponse]) -> HttpResponse:
        try:
            return view()
        except Refusal as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())


class ReadOnlyAdmin(ServiceAdmin):
    """Rows that nobody edits by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def adopt(row: Model, stored: Model) -> None:
    """Let the admin go on with the row that a service stored instead of its own."""
    row.__dict__.update(stored.__dict__)


def actor_of(request: HttpRequest) -> User:
    return cast(User, request.user)


@admin.register(Tenant)
class TenantAdmin(ServiceAdmin):
    list_display = ("slug", "name", "created_at")
    search_fields = ("slug", "name")

    def has_change_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Tenant, form: ModelForm[Any], change: bool) -> None:
        adopt(obj, services.create_tenant(slug=obj.slug, name=obj.name, actor=actor_of(request)))


@admin.register(Membership)
class MembershipAdmin(ServiceAdmin):
    list_display = ("user", "tenant", "role")
    list_filter = ("role",)
    search_fields = ("user__username", "tenant__slug")
    autocomplete_fields = ("user", "tenant")

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> tuple[str, ...]:
        return ("user", "tenant") if obj else ()

    def save_model(self, request: HttpRequest, obj: Membership, form: ModelForm[Any], change: bool) -> None:
        stored = services.add_member(tenant=obj.tenant, user=obj.user, role=obj.role, actor=actor_of(request))
        adopt(obj, stored)

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        services.remove_member(tenant=obj.tenant, user=obj.user, actor=actor_of(request))


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """`manage.py issue_api_key` makes keys: a page would leave their text in the browser."""

    list_display = ("prefix", "name", "tenant", "created_at", "expires_at", "revoked_at")
    list_filter = ("revoked_at",)
    search_fields = ("prefix", "name", "tenant__slug")
    exclude = ("digest",)
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return actor_of(request).has_perm("personas.change_apikey")

    @admin.action(description="Revoke the selected keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in queryset:
            services.revoke_api_key(key=key, actor=actor_of(request))
        self.message_user(request, f"Revoked: {queryset.count()}")


@admin.register(SteeringVector)
class SteeringVectorAdmin(ReadOnlyAdmin):
    list_display = ("name", "tenant", "base_model", "hidden_size", "layers", "digest", "created_at")
    list_filter = ("base_model",)
    search_fields = ("name", "digest", "tenant__slug")

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return actor_of(request).has_perm("personas.delete_steeringvector")

    def delete_model(self, request: HttpRequest, obj: SteeringVector) -> None:
        services.delete_vector(vector=obj, actor=actor_of(request))


class PersonaForm(ModelForm):  # type: ignore[type-arg]
    """Tells at the draft's field what is wrong with it."""

    class Meta:
        model = Persona
        fields: ClassVar = ["tenant", "slug", "name", "description", "draft"]

    def clean_draft(self) -> Any:
        try:
            return parse_definition(self.cleaned_data["draft"] or {}).as_json()
        except InvalidDefinition as error:
            raise forms.ValidationError([str(problem) for problem in error.problems]) from None


@admin.register(Persona)
class PersonaAdmin(ServiceAdmin):
    form = PersonaForm
    list_display = ("model_name", "name", "published", "created_at")
    list_select_related = ("tenant", "published__persona__tenant")
    search_fields = ("slug", "name", "tenant__slug")
    autocomplete_fields = ("tenant",)
    actions = ("publish",)

    def get_readonly_fields(self, request: HttpRequest, obj: Persona | None = None) -> tuple[str, ...]:
        return ("tenant", "slug") if obj else ()

    def save_model(self, request: HttpRequest, obj: Persona, form: ModelForm[Any], change: bool) -> None:
        actor = actor_of(request)
        if not change:
            stored = services.create_persona(
                tenant=obj.tenant,
                slug=obj.slug,
                name=obj.name,
                description=obj.description,
                definition=obj.draft,
                actor=actor,
            )
        else:
            services.update_persona(persona=obj, name=obj.name, description=obj.description, actor=actor)
            stored = services.save_draft(persona=obj, definition=obj.draft, actor=actor)
        adopt(obj, stored)

    def delete_model(self, request: HttpRequest, obj: Persona) -> None:
        services.delete_persona(persona=obj, actor=actor_of(request))

    @admin.action(description="Publish the drafts of the selected personas", permissions=["change"])
    def publish(self, request: HttpRequest, queryset: QuerySet[Persona]) -> None:
        for persona in queryset:
            services.publish_persona(persona=persona, actor=actor_of(request))
        self.message_user(request, f"Published: {queryset.count()}")


@admin.register(PersonaRevision)
class PersonaRevisionAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "created_by", "created_at")
    list_select_related = ("persona__tenant", "created_by")
    search_fields = ("persona__slug", "persona__tenant__slug")


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "tenant", "actor", "action", "target")
    list_filter = ("action",)
    list_select_related = ("tenant", "actor")
    search_fields = ("target", "tenant__slug", "actor__username")
