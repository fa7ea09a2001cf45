"""Which modules a name or a pattern of peft's means (`target_modules`, `rank_pattern`, …).

peft takes these texts for regular expressions, and so does vLLM, in its worker: there a tenant's `(a+)+$` would hold up
everybody. Here a plain name is compared as text, and of expressions only those are taken that can't be slow; what is
stored afterwards has plain names only.
"""

import re
from collections.abc import Callable

MAX_PATTERN_CHARS = 200
MAX_REPEATS = 2
MAX_OPTIONS = 4
MAX_GROUPS = 3
MAX_EXPRESSIONS = 16

Matcher = Callable[[str], bool]

_PLAIN = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_ITEM = r"(?:[A-Za-z0-9_\-]|\\[.d\-_]|\.|\[\^?[0-9A-Za-z_.\-]+\])"
_GROUP = rf"\((?:\?:)?(?:{_ITEM}|\|)+\)\??"
_ONE = rf"\^?(?:{_ITEM}[*+?]?\??|{_GROUP})+\$?"
_HARMLESS = re.compile(rf"{_ONE}(?:\|{_ONE})*\Z")
_GROUPS = re.compile(r"\((?:\?:)?([^()]*)\)")


class UnsafePattern(ValueError):
    """An expression that isn't taken."""


def is_plain(pattern: str) -> bool:
    return len(pattern) <= MAX_PATTERN_CHARS and _PLAIN.match(pattern) is not None


def full_matcher(pattern: str) -> Matcher:
    """Whether an expression is all of a module's name, as in a `target_modules` of text. Raises UnsafePattern."""
    expression = _compiled(pattern)
    return lambda name: expression.fullmatch(name) is not None


def suffix_matcher(pattern: str) -> Matcher:
    """Whether the end of a module's name, from a dot on, is a name or an expression, as in a `rank_pattern`.

    peft/utils/other.py get_pattern_key, and vllm/lora/peft_helper.py _match_pattern. Raises UnsafePattern.
    """
    if is_plain(pattern):
        return lambda name: ends_with(name, pattern)
    # A `^` can only be true of the whole name, which is what the optional part before it amounts to.
    expression = re.compile(rf"(?:.*\.)?(?:{_compiled(pattern).pattern})$")
    return lambda name: expression.match(name) is not None


def ends_with(name: str, part: str) -> bool:
    """Whether `part` is the module's name, or the last parts of it."""
    return name == part or name.endswith(f".{part}")


def _compiled(pattern: str) -> re.Pattern[str]:
    """Groups aren't repeated and hold no groups, so that few repeats, groups and options bound the time."""
    if len(pattern) > MAX_PATTERN_CHARS or not _HARMLESS.match(pattern):
        raise UnsafePattern(pattern)
    groups = _GROUPS.findall(pattern)
    bare = re.sub(r"\\.|\[[^\]]*\]|\(\?:", "", pattern)
    if (
        bare.count("*") + bare.count("+") > MAX_REPEATS
        or bare.count("?") > MAX_OPTIONS
        or len(groups) > MAX_GROUPS
        or any(len(set(group.split("|"))) < group.count("|") + 1 for group in groups)
    ):
        raise UnsafePattern(pattern)
    try:
        return re.compile(pattern)
    except re.error:
        raise UnsafePattern(pattern) from None
