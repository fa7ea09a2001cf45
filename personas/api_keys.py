"""API keys: `sg_<prefix>_<secret>`. The prefix finds the row, an HMAC of the whole text proves the rest.

A keyed hash rather than a slow password hash: the secret has 256 bits of its own, and every request pays for
the check. Keyed with SECRET_KEY, so a stolen database alone can't confirm a guess.
"""

import hmac
import re
import secrets
import string

from django.conf import settings

from personas.models import ApiKey

PREFIX_CHARS = 8
PREFIX_ALPHABET = string.ascii_lowercase + string.digits

_KEY = re.compile(rf"sg_([a-z0-9]{{{PREFIX_CHARS}}})_[A-Za-z0-9_-]{{20,120}}")
_NO_DIGEST = "0" * 64


def make_key_text() -> tuple[str, str]:
    """A new key's prefix and its whole text, which nobody sees again."""
    prefix = "".join(secrets.choice(PREFIX_ALPHABET) for _ in range(PREFIX_CHARS))
    return prefix, f"sg_{prefix}_{secrets.token_urlsafe(32)}"


def digest_of(text: str) -> str:
    """What is stored of a key: HMAC-SHA256, hex."""
    secret = b"steerguard api key v1:" + settings.SECRET_KEY.encode()
    return hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha256").hex()


def split_key(text: str) -> str | None:
    """The prefix in a key's text; None when the text can't be a key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def find_api_key(text: str) -> ApiKey | None:
    """The key that `text` is, with its tenant; None when there is none, or it is revoked or expired.

    An unknown prefix costs a comparison too, so timing doesn't tell which prefixes exist.
    """
    prefix = split_key(text)
    key = ApiKey.objects.select_related("tenant").filter(prefix=prefix).first() if prefix else None
    proven = hmac.compare_digest(digest_of(text), key.digest if key else _NO_DIGEST)
    return key if key is not None and proven and key.is_valid() else None
