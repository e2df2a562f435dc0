"""Allowed names, and the names that operators get."""

from __future__ import annotations

import functools

import pytest

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import (
    check_column_names,
    check_name,
    check_unique,
    default_name,
    did_you_mean,
    error_line,
    function_name,
    listing,
)


@pytest.mark.parametrize("name", ["a", "by_plane", "2024-delays.v2", "_x", "größe", "a" * 120])
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    assert check_name("sink", name) == name


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("", "''"),
        ("a b", "'a b'"),
        ("a/b", "'a/b'"),
        ("..", "'..'"),
        ("-a", "'-a'"),
        ("__godwit_x", "not with '__godwit'"),
        ("a" * 121, "121 bytes"),
        ("ä" * 61, "122 bytes"),
        (None, "NoneType"),
        (5, "type int"),
    ],
)
def test_other_names_are_refused_and_the_message_says_what_would_do(
    name: object, what: str
) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        check_name("sink", name)
    assert what in str(caught.value)
    assert "of a sink" in str(caught.value)
    assert caught.value.remedy


def test_a_second_thing_of_one_name_is_refused() -> None:
    with pytest.raises(InvalidFlowError, match=r"'a' is taken by another sink of flow 'f'"):
        check_unique("sink", "a", ["a", "b"], "f")
    check_unique("sink", "c", ["a", "b"], "f")


def test_reserved_and_repeated_columns_are_refused() -> None:
    check_column_names(["a", "_godwit", "godwit"], "Source 's'")
    with pytest.raises(InvalidFlowError, match=r"Source 's' has a column '__godwit_e'.*reserved"):
        check_column_names(["a", "__godwit_e"], "Source 's'")
    with pytest.raises(InvalidFlowError, match=r"Source 's' has two columns named 'a'.*Drop one"):
        check_column_names(["a", "b", "a"], "Source 's'")


def test_close_names_are_offered_whatever_their_case() -> None:
    assert did_you_mean("TAILNUM", ["tailnum", "year"]) == "Did you mean 'tailnum'? "
    assert did_you_mean("orign", ["Origin", "dest"]) == "Did you mean 'Origin'? "
    assert did_you_mean("zzz", ["origin"]) == ""
    assert did_you_mean("x", []) == ""


def test_a_long_listing_is_cut() -> None:
    assert listing(["a", "b"]) == "'a', 'b'"
    assert listing([str(i) for i in range(30)], limit=2) == "'0', '1' and 28 more"


def test_functions_are_named_as_their_authors_named_them() -> None:
    class Clear:
        def __call__(self) -> None: ...

    assert function_name(check_name) == "check_name"
    assert function_name(functools.partial(functools.partial(check_name, "a"))) == "check_name"
    assert function_name(Clear()) == "Clear"
    assert function_name(lambda: 0) == "<lambda>"


def test_only_the_first_line_of_an_error_is_quoted() -> None:
    assert error_line(ValueError("no such column\n+- Relation [a, b]")) == (
        "ValueError: no such column"
    )
    assert error_line(KeyError()) == "KeyError"


def test_a_default_name_holds_source_action_and_key_and_is_a_name() -> None:
    name = default_name(["flights"], "total", ["tail number", "year"])
    assert name == "flights_total_by_tail_number_year"
    assert check_name("operator", name) == name
