"""The table of routes: what is found by which path, and how an app adds its own."""

import pytest

from inference.gateway import routes
from inference.gateway.call import Call
from inference.gateway.errors import MethodNotAllowed, UnknownRoute
from inference.gateway.routes import find_route, register, registered_routes
from personas import services
from personas.models import Tenant
from tests.inference.gateway.conftest import Gateway


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import inference.gateway.app  # noqa: F401  (its routes are in the table before that is copied)

    monkeypatch.setattr(routes, "_fixed", {path: dict(table) for path, table in routes._fixed.items()})
    monkeypatch.setattr(
        routes, "_patterned", {path: (regex, dict(table)) for path, (regex, table) in routes._patterned.items()}
    )


async def tell(call: Call) -> None:
    await call.exchange.answer(call.path_params.get("id", "none").encode())


async def tell_more(call: Call) -> None:
    await tell(call)


@pytest.mark.parametrize(
    ("pattern", "path", "parts"),
    [
        ("/v1/things", "/v1/things", {}),
        ("/v1/things/{id}", "/v1/things/a.b", {"id": "a.b"}),
        ("/v1/things/{id}/content", "/v1/things/7/content", {"id": "7"}),
        ("/v1/things/{id:path}", "/v1/things/acme/support@7", {"id": "acme/support@7"}),
    ],
)
def test_a_pattern_gives_its_parts_to_the_handler(pattern: str, path: str, parts: dict[str, str]) -> None:
    register("GET", pattern, tell)
    route, found = find_route("GET", path)
    assert (route.handler, dict(found)) == (tell, parts)
    assert route in registered_routes()


@pytest.mark.parametrize("path", ["/v1/things", "/v1/things/", "/v1/things/7/content", "/v1/things/7/"])
def test_a_part_is_one_part_and_not_empty(path: str) -> None:
    register("GET", "/v1/things/{id}", tell)
    with pytest.raises(UnknownRoute):
        find_route("GET", path)


def test_a_path_knows_its_methods() -> None:
    register("GET", "/v1/things/{id}", tell)
    register("DELETE", "/v1/things/{id}", tell_more)
    assert find_route("DELETE", "/v1/things/7")[0].handler is tell_more
    with pytest.raises(MethodNotAllowed) as refusal:
        find_route("POST", "/v1/things/7")
    assert refusal.value.allowed == ("DELETE", "GET")


def test_a_path_has_one_handler() -> None:
    register("GET", "/v1/things", tell)
    register("GET", "/v1/things", tell)  # as when an app is loaded twice
    with pytest.raises(ValueError, match="twice"):
        register("GET", "/v1/things", tell_more)


def test_an_app_s_route_is_answered_for_keys_with_its_scope(gateway: Gateway, acme: Tenant, acme_key: str) -> None:
    register("GET", "/v1/things-of-apps/{id}", tell, scope="read")
    reader = services.issue_api_key(tenant=acme, name="reader", scopes=["read"])[1]

    assert gateway.http(reader).get("/v1/things-of-apps/job_1").text == "job_1"
    assert gateway.http(None).get("/v1/things-of-apps/job_1").status_code == 401
    refused = gateway.http(acme_key).get("/v1/things-of-apps/job_1")
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "insufficient_scope"
    assert gateway.http(reader).get("/v1/models").status_code == 403
