"""From the Authorization header to the key in it: found by its prefix, proven in constant time."""

from __future__ import annotations

from collections.abc import Iterable

from django.utils import timezone

from inference.gateway.directory import Directory, Key
from inference.gateway.errors import InvalidKey
from inference.gateway.live import LiveDirectory
from personas.api_keys import digest_of, split_key

# Where the ASGI scope of a request made inside this process (a job's) holds the Key that asks. No client can put it
# there.
ADMITTED_KEY = "steerguard.key"

# What a key of nobody's is compared with, so that timing doesn't tell which prefixes exist.
_NOBODYS_KEY = Key(tenant="", name="", prefix="", digest="0" * 64, expires_at=None)


async def authenticate(headers: Iterable[tuple[bytes, bytes]], live: LiveDirectory) -> Key:
    """The key that a request came with. Raises InvalidKey.

    A key that is not known yet is looked for once more in a fresh picture: it may have been issued a moment ago.
    """
    text = bearer_token(headers)
    if text is None:
        raise InvalidKey(given=False)
    if split_key(text) is None:
        raise InvalidKey(given=True)
    if (key := find_key(text, live.current)) is None:
        key = find_key(text, await live.refreshed({"key"}))
    if key is None:
        raise InvalidKey(given=True)
    return key


def find_key(text: str, directory: Directory) -> Key | None:
    """The valid key that `text` is."""
    if (prefix := split_key(text)) is None:
        return None
    key = directory.keys.get(prefix, _NOBODYS_KEY)
    return key if key.proves(digest_of(text), now=timezone.now()) else None


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """What an `Authorization: Bearer …` header carries."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer":
                return token.strip() or None
    return None
