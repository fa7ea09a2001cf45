"""URLs of the management API below `/api/v1/`. Each is named after its view; the isolation test knows them all."""

from django.urls import URLPattern, URLResolver, path, register_converter

from personas.api import adapters, audit, personas, tenants, vectors


class Part:
    """One part of a path; what it may name, the view finds out."""

    regex = "[^/\x00-\x1f]{1,150}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class Number:
    """A revision's number."""

    regex = "[1-9][0-9]{0,8}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


register_converter(Part, "part")
register_converter(Number, "number")

TENANT = "tenants/<part:tenant>"
PERSONA = f"{TENANT}/personas/<part:persona>"
KEY = f"{TENANT}/keys/<part:prefix>"
VECTOR = f"{TENANT}/vectors/<part:digest>"
ADAPTER = f"{TENANT}/adapters/<part:adapter>"

urlpatterns: list[URLPattern | URLResolver] = [
    path("tenants", tenants.TenantsView.as_view(), name="api-tenants"),
    path(TENANT, tenants.TenantDetailView.as_view(), name="api-tenant"),
    path(f"{TENANT}/members", tenants.MembersView.as_view(), name="api-members"),
    path(f"{TENANT}/members/<part:user>", tenants.MemberView.as_view(), name="api-member"),
    path(f"{TENANT}/keys", tenants.KeysView.as_view(), name="api-keys"),
    path(KEY, tenants.KeyView.as_view(), name="api-key"),
    path(f"{KEY}/rotate", tenants.KeyRotationView.as_view(), name="api-key-rotate"),
    path(f"{KEY}/revoke", tenants.KeyRevocationView.as_view(), name="api-key-revoke"),
    path(f"{TENANT}/personas", personas.PersonasView.as_view(), name="api-personas"),
    path(PERSONA, personas.PersonaDetailView.as_view(), name="api-persona"),
    path(f"{PERSONA}/publish", personas.PublicationView.as_view(), name="api-persona-publish"),
    path(f"{PERSONA}/roll-back", personas.RollBackView.as_view(), name="api-persona-roll-back"),
    path(f"{PERSONA}/diff", personas.DiffView.as_view(), name="api-persona-diff"),
    path(f"{PERSONA}/export", personas.ExportView.as_view(), name="api-persona-export"),
    path(f"{PERSONA}/revisions", personas.RevisionsView.as_view(), name="api-revisions"),
    path(f"{PERSONA}/revisions/<number:number>", personas.RevisionView.as_view(), name="api-revision"),
    path(f"{TENANT}/apply", personas.ApplyView.as_view(), name="api-apply"),
    path(f"{TENANT}/vectors", vectors.VectorsView.as_view(), name="api-vectors"),
    path(f"{TENANT}/vectors/preview", vectors.VectorPreviewView.as_view(), name="api-vector-preview"),
    path(VECTOR, vectors.VectorDetailView.as_view(), name="api-vector"),
    path(f"{VECTOR}/file", vectors.VectorFileView.as_view(), name="api-vector-file"),
    path(f"{TENANT}/adapters", adapters.AdaptersView.as_view(), name="api-adapters"),
    path(ADAPTER, adapters.AdapterDetailView.as_view(), name="api-adapter"),
    path(f"{ADAPTER}/file", adapters.AdapterFileView.as_view(), name="api-adapter-file"),
    path(f"{TENANT}/audit", audit.AuditView.as_view(), name="api-audit"),
]
