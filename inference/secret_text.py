"""Secrets that have to be read back (an engine's API key), encrypted under a key derived from SECRET_KEY."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class Unreadable(Exception):
    """Encrypted under another SECRET_KEY, or not by us."""

    def __init__(self) -> None:
        super().__init__("the stored secret can't be read: was SECRET_KEY changed? Store it again.")


def encrypt(text: str) -> str:
    return _fernet().encrypt(text.encode()).decode("ascii")


def decrypt(token: str) -> str:
    """The text that was encrypted. Raises Unreadable."""
    try:
        return _fernet().decrypt(token.encode("ascii")).decode()
    except (InvalidToken, UnicodeEncodeError):
        raise Unreadable from None


def _fernet() -> Fernet:
    kdf = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"steerguard secret_text v1")
    return Fernet(base64.urlsafe_b64encode(kdf.derive(settings.SECRET_KEY.encode())))
