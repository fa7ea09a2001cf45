"""Guessing passwords, slowed down: ten failed log-ins a minute for one user name from one address.

Counted in Valkey, which all web processes share. Behind a proxy that doesn't pass addresses on, everybody has the
proxy's, and the limit is one per user name.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable
from functools import wraps
from typing import Any

import redis
import structlog
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in
from django.dispatch import receiver
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import render

from personas.changes import valkey

log = structlog.get_logger("log-in")

MAX_FAILURES = 10
WINDOW_S = 60

View = Callable[..., HttpResponseBase]


def limit_failures(view: View) -> View:
    """`view`, which takes `username` and `password`, or a 429 page for the rest of the minute."""

    @wraps(view)
    def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.method != "POST":
            return view(request, *args, **kwargs)
        # Counted before the password is looked at, so that tries sent at once don't all slip through.
        tries, rest_s = _count(_key(request, request.POST.get("username", "")))
        if tries <= MAX_FAILURES:
            return view(request, *args, **kwargs)
        log.warning("too many failed log-ins", address=request.META.get("REMOTE_ADDR"))
        context = {"wait_s": rest_s, "next": request.POST.get("next", "")}
        response = render(request, "registration/login.html", context, status=429)
        response.headers["Retry-After"] = str(rest_s)
        return response

    return limited


@receiver(user_logged_in)
def _forget(sender: object, request: HttpRequest, user: AbstractBaseUser, **kwargs: object) -> None:
    """Only a password that was right gets here: a page that redirects who is signed in already says nothing."""
    try:
        valkey().delete(_key(request, user.get_username()))
    except redis.RedisError as error:
        log.warning("failed log-ins are not counted", error=str(error))


def _count(key: str) -> tuple[int, int]:
    """This try's number in its window, and the seconds until the window ends."""
    try:
        with valkey().pipeline() as pipeline:
            pipeline.set(key, 0, ex=WINDOW_S, nx=True)
            pipeline.incr(key)
            pipeline.ttl(key)
            _, tries, rest_s = pipeline.execute()
    except redis.RedisError as error:
        # Fails open: without Valkey nothing can be counted, and people who know their password still get in.
        log.warning("failed log-ins are not counted", error=str(error))
        return 0, 0
    return int(tries), max(1, int(rest_s))


def _key(request: HttpRequest, username: str) -> str:
    """Spellings that the log-in form takes for one name share a count."""
    name = unicodedata.normalize("NFKC", username).strip().casefold()
    subject = f"{request.META.get('REMOTE_ADDR', '')} {name}"
    return f"steerguard:log-ins:{hashlib.sha256(subject.encode(errors='replace')).hexdigest()}"
