"""What clients are told of their limits: what is left of them in headers, and why a request was refused in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from inference.gateway.errors import LimitReached
from inference.gateway.subjects import Subject

_WORDS = {
    1: ("requests per minute", "requests"),
    2: ("tokens per minute", "tokens"),
    3: ("concurrent requests", "requests"),
    4: ("tokens per day", "tokens"),
    5: ("tokens per month", "tokens"),
}
# Of each kind of limit per minute: where it is among a subject's maxima, and where limits.lua says what is left of it.
_PER_MINUTE = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", 0, 0),
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", 1, 2),
)


def refusal(
    subject: Subject, limit: int, wait_ms: int, used: int, tokens: int, headers: Mapping[str, str]
) -> LimitReached:
    words, kind = _WORDS[limit]
    maximum = subject.maxima[limit - 1]
    asked = tokens if kind == "tokens" else 1
    if wait_ms < 0:
        return LimitReached(
            f"This request may take {asked} tokens, more than the {words} of {subject.described} ever allow: "
            f"limit {maximum}. Send a shorter prompt or a smaller 'max_tokens'.",
            kind=kind,
            budget=limit > 3,
            retry_after_s=None,
            headers=headers,
        )
    retry_after_s = max(1, math.ceil(wait_ms / 1000))
    return LimitReached(
        f"Limit of {subject.described} reached on {words}: limit {maximum}, used or reserved {int(used)}, "
        f"requested {asked}. Try again in {written_duration(retry_after_s * 1000)}.",
        kind=kind,
        budget=limit > 3,
        retry_after_s=retry_after_s,
        headers=headers,
    )


def rate_limit_headers(subjects: Sequence[Subject], seen: Sequence[Sequence[int]]) -> dict[str, str]:
    """The `x-ratelimit-` headers of the minute's limits: of each, the subject's that has less left."""
    headers = {}
    for limit_name, remaining_name, reset_name, which, at in _PER_MINUTE:
        left = [
            (int(values[at]), subject.maxima[which], values[at + 1])
            for subject, values in zip(subjects, seen, strict=True)
            if subject.maxima[which]
        ]
        if left:
            remaining, limit, reset_ms = min(left)
            headers[limit_name] = str(limit)
            headers[remaining_name] = str(remaining)
            headers[reset_name] = written_duration(int(reset_ms))
    return headers


def written_duration(ms: int) -> str:
    """As OpenAI writes them: `120ms`, `1s`, `6m0s`, `1h2m3s`. Rounded up to whole seconds from one second on."""
    if ms < 1000:
        return f"{max(ms, 0)}ms"
    minutes, seconds = divmod(math.ceil(ms / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
