"""The operator's view of the fleet. Changes go through services."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from inference import services
from inference.models import Engine
from personas.admin import ServiceAdmin, actor_of, adopt


class EngineForm(forms.ModelForm):  # type: ignore[type-arg]
    """The stored key is never sent to a browser; an empty field leaves it as it is."""

    new_api_key = forms.CharField(
        label="API key",
        required=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text="Leave empty to keep the one that is stored.",
    )

    class Meta:
        model = Engine
        fields: ClassVar = ["name", "url", "expected_base_model"]


@admin.register(Engine)
class EngineAdmin(ServiceAdmin):
    form = EngineForm
    list_display = ("name", "url", "enabled", "status", "status_detail", "base_model", "last_seen_at")
    actions = (
        "enable",
        "disable",
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Engine | None = None) -> tuple[str, ...]:
        observed = ("enabled", "status", "status_detail", "base_model", "hidden_size", "num_layers", "boot_id")
        return ("name", *observed, "last_seen_at") if obj else ()

    def save_model(self, request: HttpRequest, obj: Engine, form: forms.ModelForm[Any], change: bool) -> None:
        engine = services.register_engine(
            name=obj.name,
            url=obj.url,
            api_key=form.cleaned_data["new_api_key"] or obj.api_key,
            expected_base_model=obj.expected_base_model,
            actor=actor_of(request),
        )
        adopt(obj, engine)

    def delete_model(self, request: HttpRequest, obj: Engine) -> None:
        services.remove_engine(engine=obj, actor=actor_of(request))

    @admin.action(description="Enable the selected engines", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Engine]) -> None:
        self._set_enabled(request, queryset, True)

    @admin.action(description="Disable the selected engines", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Engine]) -> None:
        self._set_enabled(request, queryset, False)

    def _set_enabled(self, request: HttpRequest, queryset: QuerySet[Engine], enabled: bool) -> None:
        for engine in queryset:
            services.set_engine_enabled(engine=engine, enabled=enabled, actor=actor_of(request))
