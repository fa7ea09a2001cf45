"""`Idempotency-Key` on POST: asking twice does once.

A reservation is committed first, then the change and its answer in one transaction, so that one is never without the
other. A process that dies in between leaves a reservation without an answer: after LEASE the next try may take it
over, and whoever lost it can't commit any more. Answers that hold a secret are not stored: asking again is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable
from datetime import timedelta

from django.core.files.uploadedfile import UploadedFile
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.http import QueryDict
from django.utils import timezone
from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response

from personas.api.authentication import Caller
from personas.api.parsing import ApiJsonRenderer
from personas.api.problems import CONTENT_TYPE, Conflict, IdempotencyKeyReused, answer_failure
from personas.models import IdempotentAnswer

KEPT = timedelta(hours=24)
LEASE = timedelta(minutes=2)
REPLAYED = "Idempotency-Replayed"

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def once(request: Request, caller: Caller, answer: Callable[[], Response], *, holds_secret: bool) -> Response:
    """What `answer` answers, or what it answered the first time.

    Raises ParseError for a key that is none, IdempotencyKeyReused for another request under the same key, Conflict
    while the first one is under way and for an answer that can't be given twice.
    """
    key = str(request.META["HTTP_IDEMPOTENCY_KEY"])
    if not _KEY.fullmatch(key):
        raise ParseError("Idempotency-Key: expected 1 to 255 visible ASCII characters.")
    row, is_new = _reserve(caller.name, _sha(key.encode()), _fingerprint(request))
    return _perform(request, row, answer, holds_secret) if is_new else _replay(row, _fingerprint(request))


def _reserve(caller: str, key_digest: str, fingerprint: str) -> tuple[IdempotentAnswer, bool]:
    """The row of this key, and whether it is this request's to fill."""
    now = timezone.now()
    with transaction.atomic():
        stale = Q(created_at__lt=now - KEPT) | Q(status=None, created_at__lt=now - LEASE)
        IdempotentAnswer.objects.filter(stale, caller=caller).delete()
    for _ in range(2):
        row = IdempotentAnswer.objects.filter(caller=caller, key_digest=key_digest).first()
        if row is not None:
            return row, False
        row = IdempotentAnswer(
            caller=caller, key_digest=key_digest, fingerprint=fingerprint, token=secrets.token_hex(16)
        )
        try:
            with transaction.atomic():
                row.save(force_insert=True)
            return row, True
        except IntegrityError:
            continue  # somebody was quicker
    raise Conflict("A request with this Idempotency-Key is under way.", headers={"Retry-After": "1"})


def _perform(request: Request, row: IdempotentAnswer, answer: Callable[[], Response], holds_secret: bool) -> Response:
    try:
        with transaction.atomic():
            response = answer()
            _store(row, response, holds_secret)
        return response
    except Exception as error:
        response = answer_failure(error, {"request": request})
        if response.status_code >= 500:
            IdempotentAnswer.objects.filter(pk=row.pk, token=row.token).delete()
        else:
            _store(row, response, holds_secret=False)
        return response


def _store(row: IdempotentAnswer, response: Response, holds_secret: bool) -> None:
    is_secret = holds_secret and response.status_code < 300
    body = b"" if is_secret else ApiJsonRenderer().render(response.data)
    kept = IdempotentAnswer.objects.filter(pk=row.pk, token=row.token, status=None).update(
        status=response.status_code,
        body=body.decode(),
        headers={name: response.headers[name] for name in ("ETag", "Location") if name in response.headers},
        is_secret=is_secret,
    )
    if not kept:
        raise Conflict("Another request with this Idempotency-Key took over.", headers={"Retry-After": "1"})


def _replay(row: IdempotentAnswer, fingerprint: str) -> Response:
    if row.fingerprint != fingerprint:
        raise IdempotencyKeyReused("This Idempotency-Key was used for another request.")
    if row.status is None:
        raise Conflict("A request with this Idempotency-Key is under way.", headers={"Retry-After": "1"})
    if row.is_secret:
        raise Conflict(
            "This was done, and its answer held a secret that is shown once. List the keys to find what was issued; "
            "revoke or rotate it if its text is lost."
        )
    content_type = CONTENT_TYPE if row.status >= 400 else None
    return Response(
        json.loads(row.body), row.status, headers={**row.headers, REPLAYED: "true"}, content_type=content_type
    )


def _fingerprint(request: Request) -> str:
    """Of what is asked, not of its bytes: a form's boundary is another one each time."""
    sha = hashlib.sha256(f"{request.method}\n{request.get_full_path()}\n".encode("utf-8", "surrogatepass"))
    data = request.data
    if isinstance(data, bytes):
        sha.update(data)
    elif isinstance(data, QueryDict):
        for name, values in sorted(data.lists()):
            for value in values:
                sha.update(f"\n{name}\n".encode("utf-8", "surrogatepass"))
                sha.update(_content_of(value))
    else:
        sha.update(json.dumps(data, sort_keys=True).encode())
    return sha.hexdigest()


def _content_of(value: str | UploadedFile) -> bytes:
    if not isinstance(value, UploadedFile):
        return _sha(value.encode("utf-8", "surrogatepass")).encode()
    content = hashlib.sha256()
    for chunk in value.chunks():
        content.update(chunk)
    value.seek(0)
    return content.hexdigest().encode()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
