"""Patterns mean what they mean to peft, and slow ones are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steerguard.adapters.module_patterns import UnsafePattern, full_matcher, suffix_matcher

NAMES = [
    f"model.layers.{block}.{module}"
    for block in (0, 1, 11)
    for module in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
] + ["lm_head", "model.embed_tokens", "q_proj", "xq_proj"]

PATTERNS = [
    "q_proj", "self_attn.q_proj", "model.layers.1.self_attn.q_proj", "layers.1.self_attn.q_proj", "proj", "head",
    r".*\.q_proj", r"^model\.layers\.[01]\..*", r"model\.layers\.\d+\.mlp\..*", "(q|o)_proj", "(?:q|o)_proj",
    r".*(q_proj|down_proj)$", "lm_head|q_proj", "model.embed_tokens?", r"layers\.1\..*",
]  # fmt: skip

# Backtracking, or things that no module's name needs.
SLOW = [
    "(a+)+$", "(a*)*", "(a|a)*", "(a|a)(b|c)", "(.*)*", "(x+x+)+y", r"(.*a){20}", "a{1,1000}", r"(a)\1", "(?=x)",
    "(?!x).*", "(?i)q", ".*.*.*", "a?" * 30 + "a" * 30, "(a|b)(a|b)(a|b)(a|b)", "[", "(", "", "x" * 201, "a**", "\n",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_it_means_to_peft(pattern: str) -> None:
    from peft.utils.other import get_pattern_key

    matches = suffix_matcher(pattern)
    for name in NAMES:
        assert matches(name) == (get_pattern_key([pattern], name) == pattern), name
        assert full_matcher(pattern)(name) == bool(re.fullmatch(pattern, name)), name


@pytest.mark.parametrize("pattern", SLOW)
def test_a_pattern_that_could_be_slow_is_refused(pattern: str) -> None:
    for make in (suffix_matcher, full_matcher):
        with pytest.raises(UnsafePattern):
            make(pattern)


@given(st.text("aq_.*+?|()[]^$\\d0-9{}:", max_size=40))
def test_any_text_is_taken_or_refused(pattern: str) -> None:
    try:
        matches = suffix_matcher(pattern)
    except UnsafePattern:
        return
    # A name made to be backtracked over.
    assert matches("a" * 60 + "!") in (True, False)
