"""Everything the gateway can refuse, in OpenAI's error shape.

One class per kind of refusal, raised where the fact is known; `app` turns any of them into an answer, and `relay`
into an event when the answer has already begun. This is the only place that knows the shape:
`{"error": {"message", "type", "param", "code"}}` (https://platform.openai.com/docs/guides/error-codes), which the
`openai` clients map to their exception classes by status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class GatewayError(Exception):
    """A refusal with its HTTP status. `retry_after_s` becomes the Retry-After header."""

    status = 500
    type = "server_error"
    code: str | None = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers: dict[str, str] = {}  # more of them, for the answer that it becomes

    def as_dict(self) -> dict[str, Any]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self) -> bytes:
        return json.dumps({"error": self.as_dict()}).encode()


class InvalidRequest(GatewayError):
    """The request itself is wrong; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class FieldRefused(InvalidRequest):
    """A field that is the gateway's alone, because it would reach across tenants."""

    code = "unsupported_parameter"

    def __init__(self, field: str) -> None:
        super().__init__(f"'{field}' is set by the gateway and can't be part of a request.", param=field)


class LockedParameter(InvalidRequest):
    """A field that the persona's owner has locked, or one that would undo a locked one."""

    code = "locked_parameter"

    def __init__(self, field: str, lock: str) -> None:
        because = "" if field == lock else f", with '{lock}'"
        super().__init__(
            f"'{field}' can't be part of a request: this persona's owner has locked it{because}.", param=field
        )


class Unsupported(InvalidRequest):
    """Something that the persona, or the engine that serves its model, can't do."""

    code = "unsupported"


class InvalidKey(GatewayError):
    """No key, an unknown, an expired and a revoked one: told apart for nobody."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"

    def __init__(self, *, given: bool) -> None:
        super().__init__(
            "This API key is not valid, has expired or was revoked."
            if given
            else "No API key was given: send it as 'Authorization: Bearer sg_…'."
        )


class InsufficientScope(GatewayError):
    """The key is good, but not for this."""

    status = 403
    type = "invalid_request_error"
    code = "insufficient_scope"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This API key has no '{scope}' scope, which this needs.")


class UnknownModel(GatewayError):
    """No such persona, or another tenant's: the same answer, which holds nothing but what was asked."""

    status = 404
    type = "invalid_request_error"
    code = "model_not_found"

    def __init__(self, asked: str) -> None:
        super().__init__(f"The model '{asked}' does not exist or you do not have access to it.", param="model")


class UnknownRoute(GatewayError):
    status = 404
    type = "invalid_request_error"
    code = "unknown_url"

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"There is nothing at {method} {path}.")


class MethodNotAllowed(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, method: str, path: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{path} takes {', '.join(allowed)}, not {method}.")
        self.allowed = allowed


class BodyTooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")


class LimitReached(GatewayError):
    """A limit of the tenant's or the key's is used up. `kind` is "requests" or "tokens".

    A `budget` (a day's or a month's) is `insufficient_quota`, and asking again soon is no use; without `retry_after_s`
    it never is.
    """

    status = 429
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, kind: str, budget: bool, retry_after_s: int | None, headers: Mapping[str, str]
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.type = kind
        self.headers.update(headers)
        if budget:
            self.type = self.code = "insufficient_quota"
        if budget or retry_after_s is None:
            self.headers["x-should-retry"] = "false"  # the `openai` clients would try twice more


class LimitsUnavailable(GatewayError):
    """There are limits, and nobody knows what is left of them: refused, because the alternative is no limit at all."""

    status = 503
    type = "server_error"
    code = "limits_unavailable"

    def __init__(self) -> None:
        super().__init__("The limits of this key can't be looked up at the moment.", retry_after_s=2)


class EngineUnavailable(GatewayError):
    """No engine can answer now and nothing has been sent yet: worth asking again."""

    status = 503
    type = "server_error"
    code = "engine_unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 2) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class EngineBusy(GatewayError):
    """Every engine that could answer is full, and so is the queue, or it took too long."""

    status = 429
    type = "rate_limit_error"
    code = "engine_busy"

    def __init__(self, message: str, *, retry_after_s: int = 2) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class EngineFailed(GatewayError):
    """The engine broke off or answered with something that is no answer."""

    status = 502
    type = "server_error"
    code = "engine_error"


class EngineRefused(GatewayError):
    """The engine refused the request as it stands; its status and words are passed on in our shape."""

    type = "invalid_request_error"
    code = "invalid_value"

    def __init__(self, status: int, message: str, param: str | None) -> None:
        super().__init__(message, param=param)
        self.status = status
