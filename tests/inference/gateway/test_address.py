"""What may stand in a request's `model`."""

import pytest

from inference.gateway.address import PersonaAddress


@pytest.mark.parametrize(
    ("model", "tenant", "persona", "number"),
    [
        ("acme/support", "acme", "support", None),
        ("support", "globex", "support", None),
        ("acme/support@7", "acme", "support", 7),
        ("support@12", "globex", "support", 12),
    ],
)
def test_a_persona_is_named_with_or_without_its_tenant_and_revision(
    model: str, tenant: str, persona: str, number: int | None
) -> None:
    assert PersonaAddress.parse(model, home_tenant="globex") == PersonaAddress(tenant, persona, number)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "acme/",
        "/support",
        "acme/support/more",
        "acme/support@",
        "acme/support@0",
        "acme/support@-1",
        "acme/support@latest",
        "acme/support@1234567890",
        "Acme/Support",
        "-acme/support",
        "acme/support\n",
        "acme/..",
        "a" * 64,
    ],
)
def test_anything_else_names_no_persona(model: str) -> None:
    assert PersonaAddress.parse(model, home_tenant="globex") is None
