"""Which handler answers which path: a table that the gateway fills, and that other apps add to as they start.

    register("GET", "/v1/jobs/{id}", show_job)          # in AppConfig.ready(); the handler reads call.path_params["id"]

`{name}` stands for one part of the path, `{name:path}` for the rest of it, slashes and all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from inference.gateway.call import Call
from inference.gateway.directory import Key
from inference.gateway.errors import MethodNotAllowed, UnknownRoute
from inference.gateway.exchange import Scope
from inference.gateway.runtime import Runtime

Handler = Callable[[Call], Awaitable[None]]
Admit = Callable[[Scope, Runtime, Mapping[str, str]], Awaitable[Key]]

_PART = re.compile(r"\{(?P<name>[a-z_]+)(?P<rest>:path)?\}")


@dataclass(frozen=True, slots=True)
class Route:
    """`scope` is what a key needs to be let in (personas.models.ApiKey.Scope).

    `admit` decides in place of the Authorization header whose request it is, from it, the runtime and the path's parts.
    """

    method: str
    pattern: str
    handler: Handler
    scope: str
    admit: Admit | None = None


_fixed: dict[str, dict[str, Route]] = {}  # by path, then by method
_patterned: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}


def register(
    method: str, path_pattern: str, handler: Handler, *, scope: str = "inference", admit: Admit | None = None
) -> None:
    """Answer `method` at `path_pattern` with `handler`. Raises ValueError where another one does."""
    if _PART.search(path_pattern):
        by_method = _patterned.setdefault(path_pattern, (_compile(path_pattern), {}))[1]
    else:
        by_method = _fixed.setdefault(path_pattern, {})
    route = Route(method, path_pattern, handler, scope, admit)
    if by_method.setdefault(method, route) != route:
        raise ValueError(f"{method} {path_pattern} is registered twice")


def registered_routes() -> list[Route]:
    """All of them, in the order in which their paths came."""
    tables = [*_fixed.values(), *(by_method for _, by_method in _patterned.values())]
    return [route for by_method in tables for route in by_method.values()]


def find_route(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """The route for a request and what its pattern's parts are. Raises UnknownRoute, MethodNotAllowed."""
    by_method, parts = _match(path)
    if not by_method:
        raise UnknownRoute(method, path)
    if (route := by_method.get(method)) is None:
        raise MethodNotAllowed(method, path, tuple(sorted(by_method)))
    return route, parts


def _match(path: str) -> tuple[Mapping[str, Route], Mapping[str, str]]:
    if (by_method := _fixed.get(path)) is not None:
        return by_method, {}
    for pattern, found in _patterned.values():
        if (match := pattern.fullmatch(path)) is not None:
            return found, match.groupdict()
    return {}, {}


def _compile(path_pattern: str) -> re.Pattern[str]:
    """A part is never empty."""
    expression, end = "", 0
    for part in _PART.finditer(path_pattern):
        expression += re.escape(path_pattern[end : part.start()])
        expression += f"(?P<{part['name']}>{'.+' if part['rest'] else '[^/]+'})"
        end = part.end()
    return re.compile(expression + re.escape(path_pattern[end:]), re.DOTALL)
