"""What a request's `model` may say: `tenant/persona`, `persona`, either with `@7` for a revision, or a base model.

The grammar only: whether such a persona exists is the directory's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SLUG = r"[a-z0-9][a-z0-9-]{0,62}"
_ADDRESS = re.compile(rf"(?:(?P<tenant>{_SLUG})/)?(?P<persona>{_SLUG})(?:@(?P<number>[1-9][0-9]{{0,8}}))?")

MAX_MODEL_CHARS = 256


@dataclass(frozen=True, slots=True)
class PersonaAddress:
    """`number` is None for whatever revision is published."""

    tenant: str
    persona: str
    number: int | None

    @classmethod
    def parse(cls, model: str, *, home_tenant: str) -> PersonaAddress | None:
        """The address in `model`, None when it can't be one. `home_tenant` is the key's, for the short forms."""
        if (found := _ADDRESS.fullmatch(model)) is None:
            return None
        number = found["number"]
        return cls(found["tenant"] or home_tenant, found["persona"], int(number) if number else None)
