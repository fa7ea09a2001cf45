"""Every change to tenants' adapters, and where their files are; as personas/services.py, of which this is a part.

An upload is checked against the base model before anything of it is kept, and what is kept is written anew
(steerguard/adapters/canonical.py) under DATA_DIR/adapters, by digest: equal adapters are stored once for everybody. An
engine knows an adapter by an id that says neither tenant nor name. Nothing that serves requests knows adapters yet, so
no change is announced.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import transaction
from django.db.models import Sum

from personas.audit import record
from personas.errors import InvalidAdapter, NoBaseModel, Problem, TooMany
from personas.models import Adapter, Tenant
from personas.validation import check_slug, saved
from steerguard.adapters import (
    AdapterError,
    AdapterStore,
    CheckedAdapter,
    Problems,
    check_files,
    engine_id,
    open_source,
    read_base_model,
)

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from steerguard.adapters import BaseModel

MAX_ADAPTERS = 1_000  # of one tenant
GRACE_S = 600.0  # files stay so long after they were stored, whether a row needs them or not


def store() -> AdapterStore:
    return AdapterStore(Path(settings.DATA_DIR) / "adapters")


def served_base_model() -> BaseModel:
    """The model that adapters have to be made for. Raises NoBaseModel when it isn't in a folder of this machine."""
    folder = Path(settings.MODEL)
    try:
        return read_base_model(folder)
    except (AdapterError, OSError) as error:
        raise NoBaseModel("base", "a base model on this server that adapters can be served on", str(error)) from None


def store_adapter(
    *, tenant: Tenant, upload: Path, name: str, description: str = "", actor: User | None = None
) -> tuple[Adapter, bool]:
    """Check and store the adapter in a folder or archive under `name`, and say whether it is new to the tenant.

    Storing the same adapter again updates what is said about it and returns the row there was. Raises InvalidAdapter
    with every problem by field, InvalidSlug, InvalidField, TooMany, NoBaseModel.
    """
    check_slug("name", name)
    base = served_base_model()
    problems = Problems()
    with open_source(upload, problems, scratch=store().scratch()) as files:
        checked = check_files(files, base, problems, max_lora_rank=settings.MAX_LORA_RANK)
        if checked is None:
            raise InvalidAdapter([Problem(one.field, one.expected, one.found) for one in problems.listed()])
        return _store(tenant, checked, name, description, actor)


def _store(
    tenant: Tenant, checked: CheckedAdapter, name: str, description: str, actor: User | None
) -> tuple[Adapter, bool]:
    digest = store().put(checked)  # before the transaction, which would keep everybody waiting for the disk
    with transaction.atomic():
        saved_row = _save_row(tenant, checked, digest, name, description, actor)
    collect_unused()
    return saved_row


def _save_row(
    tenant: Tenant, checked: CheckedAdapter, digest: str, name: str, description: str, actor: User | None
) -> tuple[Adapter, bool]:
    Tenant.objects.select_for_update().get(pk=tenant.pk)
    row = tenant.adapters.filter(digest=digest).first()
    is_new = row is None
    if row is None:
        size_bytes = sum(path.stat().st_size for path in store().path_of(digest).iterdir())
        _check_room(tenant, size_bytes)
        row = Adapter(tenant=tenant, digest=digest, size_bytes=size_bytes)
    row.name = name
    row.description = description
    row.base_model = checked.base.name
    row.rank = checked.rank
    row.target_modules = sorted({module.rpartition(".")[2] for module in checked.modules})
    row.num_parameters = checked.num_parameters
    row.engine_id = engine_id(str(tenant.pk), digest)
    saved(row)
    record(tenant, actor, "adapter.stored" if is_new else "adapter.updated", name, {"digest": digest})
    return row, is_new


def _check_room(tenant: Tenant, size_bytes: int) -> None:
    """Whoever calls holds the tenant's lock."""
    if tenant.adapters.count() >= MAX_ADAPTERS:
        raise TooMany("adapter", f"at most {MAX_ADAPTERS} adapters in a tenant", "as many already")
    most = settings.MAX_TENANT_ADAPTERS_MIB
    stored = tenant.adapters.aggregate(total=Sum("size_bytes"))["total"] or 0
    if stored + size_bytes > most * 1024 * 1024:
        found = f"{stored} bytes already, and {size_bytes} more"
        raise TooMany("adapter", f"at most {most} MiB of adapters in a tenant", found)


@transaction.atomic
def update_adapter(
    *, adapter: Adapter, name: str | None = None, description: str | None = None, actor: User | None = None
) -> Adapter:
    """Change what is said about an adapter, not the adapter. Raises InvalidSlug, InvalidField."""
    adapter = Adapter.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=adapter.pk)
    if name is not None:
        check_slug("name", name)
        adapter.name = name
    adapter.description = adapter.description if description is None else description
    saved(adapter)
    record(adapter.tenant, actor, "adapter.updated", adapter.name, {"digest": adapter.digest})
    return adapter


@transaction.atomic
def delete_adapter(*, adapter: Adapter, actor: User | None = None) -> None:
    """Remove an adapter. Its files go with it, or with a later change, once no row needs them."""
    adapter = Adapter.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=adapter.pk)
    tenant, digest = adapter.tenant, adapter.digest
    record(tenant, actor, "adapter.deleted", adapter.name, {"digest": digest})
    adapter.delete()
    transaction.on_commit(collect_unused, robust=True)


def collect_unused() -> None:
    """Remove the files of adapters that no row needs any more."""
    store().collect_unused(_in_use, grace_s=GRACE_S)


def _in_use(digests: Collection[str]) -> Collection[str]:
    return set(Adapter.objects.filter(digest__in=digests).values_list("digest", flat=True))
