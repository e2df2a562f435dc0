"""Rows that a function emitted become columns, or an error that names key and column."""

from __future__ import annotations

import collections
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from godwit.library.emitted import Emitted
from godwit.model.errors import UserFunctionError

SCHEMA = pa.schema(
    [pa.field("symbol", pa.string()), pa.field("price", pa.float64(), nullable=False)]
)
KEYS: list[tuple[Any, ...]] = [("A",), ("B",), ("C",)]

Trade = collections.namedtuple("Trade", ["symbol", "price"])  # noqa: PYI024 - as users write it


def emitted(rows: list[Any], ends: list[int], schema: pa.Schema = SCHEMA) -> Emitted:
    return Emitted(rows=rows, ends=ends, keys=KEYS, schema=schema, operator="market")


def test_tuples_lists_named_tuples_and_dicts_are_rows() -> None:
    rows = [("a", 1.0), ["b", 2], Trade("c", 3.0), {"price": 4.0, "symbol": None}]
    assert emitted(rows, [2, 2, 4]).to_batch().to_pylist() == [
        {"symbol": "a", "price": 1.0},
        {"symbol": "b", "price": 2.0},
        {"symbol": "c", "price": 3.0},
        {"symbol": None, "price": 4.0},
    ]


def test_no_rows_are_an_empty_batch() -> None:
    batch = emitted([], [0, 0, 0]).to_batch()
    assert batch.num_rows == 0
    assert batch.schema == SCHEMA


BAD: list[tuple[Any, str, str]] = [
    (("x",), "a row of 1 values, ('x',)", "Return a tuple in the order of the output columns"),
    (("x", 1.0, 2), "a row of 3 values", "symbol: string, price: double"),
    ({"symbol": "x", "prize": 1.0}, "a row without 'price'", "Did you mean 'prize'?"),
    ({"symbol": "x"}, "a row without 'price'", "Return a tuple"),
    (
        {"symbol": "x", "price": 1.0, "size": 2},
        "a row with 'size', which is not an output column",
        "they are symbol: string",
    ),
    ("xy", "'xy', of type str, instead of a row", "or yield them one by one"),
    (7, "7, of type int, instead of a row", "Return a list of rows"),
    (("x", "cheap"), "'cheap' in column 'price', which is double", "price: double"),
    ((3, 1.0), "3 in column 'symbol', which is string", "symbol: string"),
    (("x", None), "None in column 'price', which may not be null", "price: double"),
]


@pytest.mark.parametrize(("row", "what", "remedy"), BAD)
def test_a_row_that_does_not_fit_is_shown_with_its_key(row: Any, what: str, remedy: str) -> None:
    rows = [("a", 1.0), ("b", 2.0), row, ("c", 3.0)]
    with pytest.raises(UserFunctionError) as caught:
        emitted(rows, [2, 2, 4]).to_batch()
    assert "Operator 'market': the function emitted, for key ('C',)" in caught.value.message
    assert what in caught.value.message
    assert remedy in caught.value.remedy
    assert caught.value.context["key"] == ("C",)


def test_the_key_is_found_where_its_neighbours_emitted_nothing() -> None:
    with pytest.raises(UserFunctionError, match=r"for key \('B',\)"):
        emitted([("b",)], [0, 1, 1]).to_batch()


def test_long_values_are_cut_short() -> None:
    with pytest.raises(UserFunctionError, match=r"'x{79}\.\.\. in column"):
        emitted([("a", "x" * 500)], [1, 1, 1]).to_batch()


def test_a_fraction_is_not_an_integer() -> None:
    schema = pa.schema({"n": pa.int64()})
    assert emitted([(2.0,)], [1, 1, 1], schema).to_batch()["n"].to_pylist() == [2]
    for value in (2.5, Decimal("2.5")):
        with pytest.raises(UserFunctionError, match=r"2\.5.* in column 'n'.*lose the fraction"):
            emitted([(1,), (None,), (value,)], [1, 2, 3], schema).to_batch()
