"""Aggregates with a condition see the rows for which it holds, and no others."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError

MOMENTS = pa.array(["2026-03-29 01:00:00", None, None, None]).cast(pa.timestamp("us"))
ROWS = pa.record_batch(
    {
        "n": pa.array([1, 2, 3, None], pa.int32()),
        "x": pa.array([0.5, math.nan, -0.0, None]),
        "d": pa.array([Decimal("1.50"), Decimal("2.00"), None, Decimal("-3.25")]),
        "s": pa.array(["a", "it's", None, "b"]),
        "flag": pa.array([True, False, None, True]),
        "day": pa.array([dt.date(2026, 3, 28), dt.date(2026, 3, 29), None, None]),
        "local": MOMENTS,
        "utc": MOMENTS.cast(pa.timestamp("us", "UTC")),
        "odd name": pa.array([1, 2, 3, 4]),
        "route": pa.array([[1], None, None, None]),
    }
)

HOLDS: dict[str, list[int]] = {
    "n > 1": [1, 2],
    "not n > 1": [0],
    "n = 1 or s = 'b'": [0, 3],
    "n <> 2 and n is not null": [0, 2],
    "n >= 1.5": [1, 2],
    "2 <= n": [1, 2],
    "n in (1, 3)": [0, 2],
    "n not in (1, 3)": [1],
    "x > 0": [0, 1],
    "x = 0": [2],
    "x >= x": [0, 1, 2],
    "x <> x": [],
    "x < 100": [0, 2],
    "d >= 1.5": [0, 1],
    "d < -3": [3],
    "d = n": [1],
    "s = 'it''s'": [1],
    "s IS NULL": [2],
    "flag": [0, 3],
    "not flag": [1],
    "flag = true": [0, 3],
    "(flag or n = 2) and not (s = 'a')": [1, 3],
    "day < '2026-03-29'": [0],
    "local = '2026-03-29 01:00:00'": [0],
    "utc = '2026-03-29T03:00:00+02:00'": [0],
    "`odd name` == 4": [3],
    "`odd name` < 9223372036854775808": [0, 1, 2, 3],
    "`odd name` > -9223372036854775809": [0, 1, 2, 3],
    "n in (2, 9223372036854775808)": [1],
    "2 between n and 10": [0, 1],
    "1 in (3, n)": [0],
    "1 < 2 and flag": [0, 3],
    "1 > 2.5 or flag": [0, 3],
    "'a' < 'b' and true = true and flag": [0, 3],
    "9223372036854775808 < 9223372036854775809 and 1e2 = 100 and flag": [0, 3],
}


@pytest.mark.parametrize("where", HOLDS)
def test_rows_count_for_which_the_condition_holds(where: str) -> None:
    aggregate = gw.collect_set("odd name", where=where)
    bound = pickle.loads(pickle.dumps(aggregate.bind(ROWS.schema)))
    columns = [ROWS.column(name) for name in aggregate.columns]
    state = bound.update(bound.create(1), np.zeros(4, np.int64), *columns)
    assert bound.finish(state).to_pylist() == [[row + 1 for row in HOLDS[where]]]


def test_a_condition_may_list_many_values() -> None:
    where = f"n in ({', '.join(map(str, range(3, 5_000)))})"
    aggregate = gw.count(where=where)
    bound = pickle.loads(pickle.dumps(aggregate.bind(ROWS.schema)))
    state = bound.update(bound.create(1), np.zeros(4, np.int64), ROWS.column("n"))
    assert bound.finish(state).to_pylist() == [1]


def test_a_condition_says_how_it_was_written_and_adds_its_columns() -> None:
    assert repr(gw.count(where="n > 1")) == "gw.count(where='n > 1')"
    assert repr(gw.top_k("n", 2, by="x", where="flag")) == "gw.top_k('n', 2, by='x', where='flag')"
    assert gw.sum("n", where="n > 1 and flag").columns == ("n", "flag")


def test_a_condition_is_part_of_what_the_state_is_however_it_is_spaced() -> None:
    def described(aggregate: gw.Aggregate) -> dict[str, object]:
        return aggregate.bind(ROWS.schema).describe()

    plain = described(gw.sum("n"))
    assert described(gw.sum("n", where="n>1  AND flag")) == {
        **plain,
        "where": "((`n` > 1) and `flag`)",
    }
    assert described(gw.sum("n", where="(n > 1) and flag")) != plain


@pytest.mark.parametrize("aggregate", [gw.sum, gw.max, gw.first])
def test_a_condition_leaves_order_as_much_or_as_little_weight_as_it_has(aggregate: Any) -> None:
    bound = aggregate("n").bind(ROWS.schema)
    filtered = aggregate("n", where="flag").bind(ROWS.schema)
    assert filtered.commutative == bound.commutative
    assert filtered.idempotent == bound.idempotent


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "it ends too early"),
        ("n >", "it ends too early"),
        ("n > 1 1", "'1' is unexpected"),
        ("n ! 1 > 2", r"'! 1 > 2' cannot be parsed \(at character 3\)"),
        ("n + > 2", r"'>' is unexpected \(at character 5\)"),
        ("round(n) > 2", r"there is no function 'round' \(at character 1\)"),
        ("flag and lowr(s) = 'a'", "Did you mean 'lower'"),
        ("if(flag, n) > 2", "if takes 3 arguments, but has 2"),
        ("case n when 1 then 2", "'end' is missing at the end"),
        ("case flag else 2 end > 1", "'when' is missing before 'else'"),
        ("n = null", "use is null"),
        ("(n > 1", r"'\)' is missing at the end"),
        ("n is 3", "'null' is missing before '3'"),
        ("n between 1 or 2", "'and' is missing before 'or'"),
        ("n like 'a%'", "'like' is unexpected"),
        (" + ".join(["n"] * 1_000) + " > 2", "more than 50 operations in a row"),
        ("1 = 1", "it refers to no column"),
        ("true", "refers to no column"),
        ("n > " + "1" * 5_000, "more than 38 digits"),
        ("(" * 1_000 + "flag" + ")" * 1_000, "nested more than 30 deep"),
        ("n > " + "- " * 1_000 + "n", "nested more than 30 deep"),
        ("not " * 1_000 + "flag", "nested more than 30 deep"),
        (lambda: True, "as in where="),
    ],
)
def test_what_is_no_condition_is_refused_in_its_line(where: Any, said: str) -> None:
    with pytest.raises(InvalidFlowError, match=said):
        gw.sum("n", where=where)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("m > 1", "reads column 'm', which does not exist"),
        ("n > -s", r"\(- `s`\) cannot be evaluated \(s is string\)"),
        ("n + s > 1", r"\(`n` \+ `s`\) cannot be evaluated \(n is int32, s is string\)"),
        ("coalesce(n, s) = 1", "cannot be evaluated"),
        ("n > 'a'", r"\(`n` > 'a'\) cannot be evaluated \(n is int32\)"),
        ("n", "`n` cannot be evaluated"),
        ("not n", r"\(not `n`\) cannot be evaluated"),
        ("s > 1", "cannot be evaluated"),
        ("s = n", "cannot be evaluated"),
        ("day = '29.3.2026'", "write a date as '2026-03-29'"),
        ("utc = '2026-03-29 01:00:00'", "if it has one"),
        ("local = utc", "cannot be evaluated"),
        ("route = route", "cannot be evaluated"),
    ],
)
def test_a_condition_that_the_columns_cannot_be_asked_is_refused(where: str, said: str) -> None:
    with pytest.raises(InvalidFlowError, match=said):
        gw.sum("n", where=where).bind(ROWS.schema)
