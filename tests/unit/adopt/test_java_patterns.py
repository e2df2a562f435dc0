"""Regular expressions of Java match in Python what they match in Java, or are refused."""

from __future__ import annotations

import pytest

from godwit.adopt.java_patterns import java_pattern


@pytest.mark.parametrize(
    "text",
    [
        "(?<=a)b",
        "(?=a)",
        "(?<name>a)",
        "a*+",
        "a**",
        "*a",
        "(a*)*",
        "(a|)+",
        "(a",
        "a)",
        "[a&&b]",
        "[a[b]]",
        "[b-a]",
        "a{2",
        "a{3,1}",
        r"\bword",
        r"(a)\1",
        r"\p{Lu}",
        r"\Qa\E",
    ],
)
def test_what_may_mean_another_thing_is_refused(text: str) -> None:
    assert java_pattern(text) is None


@pytest.mark.parametrize(
    ("text", "searched", "matched"),
    [
        ("a.c", "a\u2028c abc", "abc"),
        ("a$", "ba\r\n", "a"),
        ("a$", "a\n\n", None),
        (r"\w+", "żółw ok", "w"),
        ("(?i)ab", "xAB", "AB"),
        ("(?i)ż", "Ż", None),
        (r"[\w.-]+@x", "a.b-c@x", "a.b-c@x"),
        ("^(ERR|WARN)$", "WARN", "WARN"),
        ("a{2,3}?", "aaa", "aa"),
        ("[^,|]+", ",b|", "b"),
    ],
)
def test_what_is_taken_matches_as_in_java(text: str, searched: str, matched: str | None) -> None:
    pattern = java_pattern(text)
    assert pattern is not None
    match = pattern.pattern.search(searched)
    assert (match and match[0]) == matched


def test_a_pattern_tells_whether_it_may_match_nothing_and_repeats_groups() -> None:
    either, repeated = java_pattern("a|b?"), java_pattern("(?:x(a))+")
    assert either is not None
    assert either.can_be_empty
    assert repeated is not None
    assert repeated.repeats_captures
    assert repeated.groups == 1
    assert not repeated.can_be_empty
