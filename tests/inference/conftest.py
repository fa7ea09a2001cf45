"""What the gateway's tests have, for everything else that asks engines through it."""

from tests.inference.gateway.conftest import gateway, register, stub, support

__all__ = ["gateway", "register", "stub", "support"]
