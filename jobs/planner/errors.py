"""Why a plan can't be made."""


class PlanError(ValueError):
    """One input of a plan is wrong: which, what was expected there, and what was found."""

    def __init__(self, field: str, expected: str, found: object) -> None:
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = str(found)


def require(condition: bool, field: str, expected: str, found: object) -> None:
    """Raises PlanError unless `condition` holds."""
    if not condition:
        raise PlanError(field, expected, found)
