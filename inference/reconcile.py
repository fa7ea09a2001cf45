"""Bringing engines to the desired state."""


def reconcile_engines() -> None:
    """Bring every enabled engine to the desired state."""
