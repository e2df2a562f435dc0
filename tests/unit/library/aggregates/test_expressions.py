"""Aggregates take expressions instead of columns, computed as in Spark's ANSI mode."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.oracles.expressions import drawn_expression, edge_rows

import godwit as gw
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.library.aggregates.conditions import computed
from godwit.library.aggregates.expressions import Rows, check_types, parse_expression
from godwit.model.errors import EpochFailedError, InvalidFlowError

MOMENT = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
ROWS = pa.record_batch(
    {
        "k": pa.array(["a", "b", "a", "b"]),
        "a": pa.array([6, 7, None, -7], pa.int32()),
        "b": pa.array([4, 0, 3, 2], pa.int32()),
        "x": pa.array([0.5, math.nan, 1.5, None]),
        "price": pa.array([Decimal("1.25"), Decimal("2.00"), None, Decimal("0.10")]),
        "s": pa.array(["x", "Żółw", None, ""]),
        "start": pa.array([MOMENT] * 4, pa.timestamp("us", "UTC")),
        "stop": pa.array([MOMENT + dt.timedelta(hours=i) for i in range(4)]).cast(
            pa.timestamp("us", "UTC")
        ),
        "day": pa.array([dt.date(2026, 3, 1 + i) for i in range(4)]),
        "u": pa.array([1, 2, 3, 4], pa.uint32()),
        "narrow": pa.array([Decimal("1.25")] * 4, pa.decimal32(5, 2)),
        "odd * name": pa.array([1, 2, 3, 4], pa.int64()),
    }
)
VALUES: dict[str, tuple[list[Any], str]] = {
    "a + b * 2": ([14, 7, None, -3], "int32"),
    "(a + b) * 2": ([20, 14, None, -10], "int32"),
    "a - -b": ([10, 7, None, -5], "int32"),
    "-a": ([-6, -7, None, 7], "int32"),
    "a % 4": ([2, 3, None, -3], "int32"),
    "a / 4": ([1.5, 1.75, None, -1.75], "double"),
    "price * b": ([Decimal("5.00"), Decimal("0.00"), None, Decimal("0.20")], "decimal128(14, 2)"),
    "price * 2": ([Decimal("2.50"), Decimal("4.00"), None, Decimal("0.20")], "decimal128(5, 2)"),
    "price / 3": (
        [Decimal("0.416667"), Decimal("0.666667"), None, Decimal("0.033333")],
        "decimal128(7, 6)",
    ),
    "price + x": ([1.75, math.nan, None, None], "double"),
    "u + 1": ([2, 3, 4, 5], "int64"),
    "x * 1e2": ([50.0, math.nan, 150.0, None], "double"),
    "abs(a)": ([6, 7, None, 7], "int32"),
    "coalesce(a, b)": ([6, 7, 3, -7], "int32"),
    "coalesce(price, a)": (
        [Decimal("1.25"), Decimal("2.00"), None, Decimal("0.10")],
        "decimal128(12, 2)",
    ),
    "least(a, b, 5)": ([4, 0, 3, -7], "int32"),
    "greatest(x, 1.0)": ([1.0, math.nan, 1.5, 1.0], "double"),
    "if(b = 0, -1, a / b)": ([1.5, -1.0, None, -3.5], "double"),
    "case when b <> 0 then a / b end": ([1.5, None, None, -3.5], "double"),
    "case b when 4 then 'four' when 0 then 'no' else s end": (["four", "no", None, ""], "string"),
    "upper(s) || '!'": (["X!", "ŻÓŁW!", None, "!"], "string"),
    "length(lower(s))": ([1, 4, None, 0], "int32"),
    "stop - start": ([dt.timedelta(hours=i) for i in range(4)], "duration[us]"),
    "day - day": ([dt.timedelta(0)] * 4, "duration[us]"),
    "b <> 0 and a / b > 1": ([True, False, None, False], "bool"),
    "b = 0 or a / b > 1": ([True, True, None, False], "bool"),
    "b between 1 and 3": ([False, False, True, True], "bool"),
    "`odd * name` * 10": ([10, 20, 30, 40], "int64"),
    "narrow * 2": ([Decimal("2.50")] * 4, "decimal128(7, 2)"),
    "narrow > 1 and a < 10": ([True, True, None, True], "bool"),
    "a < 1e38 and price < 1e50": ([True, True, None, True], "bool"),
    "a + b in (10, 7)": ([True, True, None, False], "bool"),
}


def evaluate(text: str, rows: pa.RecordBatch = ROWS) -> pa.Array:
    """Values of an expression, which crosses a pickle."""
    expression = pickle.loads(pickle.dumps(parse_expression(text, "it", rows.schema.names)))
    dtype = check_types(expression, rows.schema, "it", "expression")
    found = expression.evaluate(Rows(columns=dict(zip(rows.schema.names, rows, strict=True))))
    assert found.type == dtype
    return found


@pytest.mark.parametrize("text", VALUES)
def test_an_expression_has_the_value_and_type_of_spark(text: str) -> None:
    found = evaluate(text)
    values, dtype = VALUES[text]
    assert (repr(found.to_pylist()), str(found.type)) == (repr(values), dtype)


@pytest.mark.parametrize(
    ("text", "row", "said"),
    [
        ("a / b", 1, "division by zero"),
        ("price % b", 1, "division by zero"),
        ("a * 2147483647", 0, "6 * 2147483647 does not fit int32"),
        ("-(a - 2147483641)", 3, "does not fit int32"),
        ("price * 1e0 / 0", 0, "division by zero"),
        ("99999999999999999999999999999999999999 + a", 0, "does not fit decimal"),
    ],
)
def test_a_row_without_a_value_is_named(text: str, row: int, said: str) -> None:
    with pytest.raises(EvaluationError, match=said.replace("*", r"\*")) as caught:
        evaluate(text)
    assert caught.value.row == row


def exact(text: str, row: dict[str, Any]) -> Any:
    """Value of an expression of whole numbers, ``null`` as ``None``, by Python's own operators."""
    null_free = {name: value for name, value in row.items() if value is not None}
    try:
        return eval(text, {"__builtins__": {"abs": abs}}, null_free)
    except NameError:
        return None


def test_sums_and_products_of_drawn_numbers_are_those_of_plain_python() -> None:
    rng = random.Random(17)
    values = {"a": pa.int64(), "b": pa.int32(), "d": pa.decimal128(9, 3)}
    for _ in range(150):
        columns = {
            name: pa.array(
                [
                    None
                    if rng.random() < 0.2
                    else Decimal(rng.randrange(-(10**6), 10**6)).scaleb(-3)
                    if name == "d"
                    else rng.randrange(-999, 1000)
                    for _ in range(8)
                ],
                dtype,
            )
            for name, dtype in values.items()
        }
        rows = pa.record_batch(columns)
        text = rng.choice("abd")
        for _ in range(rng.randrange(1, 4)):
            sign, other = rng.choice("+-*"), rng.choice(["a", "b", "d", "2", "(-3)", "abs(b)"])
            text = rng.choice([f"({text} {sign} {other})", f"({other} {sign} {text})"])
        found = evaluate(text, rows).to_pylist()
        for row, value in zip(rows.to_pylist(), found, strict=True):
            fractions = {n: None if v is None else Fraction(v) for n, v in row.items()}
            expected = exact(text, fractions)
            assert (None if value is None else Fraction(value)) == expected, (text, row)


def test_drawn_expressions_never_end_in_an_error_of_arrow() -> None:
    rng = random.Random(23)
    rows = edge_rows(rng, 30)
    computed_ones = 0
    for _ in range(600):
        text = drawn_expression(rng, rng.choice(["number", "text", "truth"]))
        try:
            evaluate(text, rows)
            computed_ones += 1
        except (InvalidFlowError, EvaluationError):
            continue
    assert computed_ones > 200


def test_an_expression_is_computed_for_the_rows_of_its_condition_alone() -> None:
    flow = gw.Flow("f")
    rows = flow.source("rows", gw.testing.stream(ROWS.schema))
    ratio = gw.sum("a / b", where="b <> 0 and 12 / b > 2")
    flow.sink("out", rows.key_by("k").compute(ratio=ratio), gw.sinks.noop())
    run = gw.testing.run(flow, {"rows": pa.Table.from_batches([ROWS])})
    assert run.current("out").sort_by("k")["ratio"].to_pylist() == [1.5, -3.5]


def test_an_expression_stands_in_every_argument_of_an_aggregate() -> None:
    flow = gw.Flow("f")
    rows = flow.source("rows", gw.testing.stream(ROWS.schema))
    results = {
        "n": gw.count("a / 2"),
        "total": gw.sum("b * b"),
        "mean": gw.mean("b + 1"),
        "best": gw.max("b - 1"),
        "least": gw.min("-b"),
        "last": gw.last("b % 3"),
        "first": gw.first("s || '.'"),
        "by": gw.max_by("b * 10", "-b"),
        "top": gw.top_k("b + b", 1, by="b * -1"),
        "some": gw.collect_list("b * 2"),
        "distinct": gw.count_distinct("b * 0"),
        "spread": gw.variance("b * 2.0", population=True),
        "half": gw.approx_percentile("b * 1.0", 0.5),
        "often": gw.most_frequent("b > 1"),
        "longest": Longest("s || s"),
    }
    flow.sink("out", rows.key_by().compute(results), gw.sinks.noop())
    (row,) = gw.testing.run(flow, {"rows": pa.Table.from_batches([ROWS])}).rows("out").to_pylist()
    assert row.pop("half") == pytest.approx(2.0, rel=0.01)
    assert row.pop("spread") == pytest.approx(np.var([8, 0, 6, 4]))
    assert row == {
        "n": 3,
        "total": 29,
        "mean": 3.25,
        "best": 3,
        "least": -4,
        "last": 2,
        "first": "x.",
        "by": 0,
        "top": [{"b + b": 0, "b * -1": 0}],
        "some": [8, 0, 6, 4],
        "distinct": 1,
        "often": [{"value": True, "count": 3}],
        "longest": 8,
    }


class Longest(gw.types.Aggregator):
    """Length of the longest text."""

    state = pa.schema({"length": pa.int64()})
    output = pa.int64()

    def create(self, count: int) -> pa.RecordBatch:
        return pa.record_batch([np.zeros(count, np.int64)], schema=self.state)

    def update(self, states: pa.RecordBatch, groups: Any, *columns: pa.Array) -> pa.RecordBatch:
        longest = states["length"].to_numpy().copy()
        lengths = pa.compute.utf8_length(columns[0]).fill_null(0).to_numpy()
        np.maximum.at(longest, groups, lengths)
        return pa.record_batch([longest], schema=self.state)

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        longest = pa.compute.max_element_wise(left["length"], right["length"])
        return pa.record_batch([longest], schema=self.state)

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states["length"]


class Wrong(Longest):
    """An aggregate that breaks its contract."""

    def finish(self, states: pa.RecordBatch) -> pa.Array:
        return states["length"].cast(pa.int32())


def test_an_aggregate_of_a_user_is_checked_behind_its_expression() -> None:
    with pytest.raises(gw.errors.UserFunctionError, match=r"'it' \(Wrong\)"):
        summed(Wrong("s || s"))


def summed(aggregate: Any, rows: pa.RecordBatch = ROWS) -> list[Any]:
    """Results of an aggregate per key, in two epochs."""
    flow = gw.Flow("f")
    stream = flow.source("rows", gw.testing.stream(rows.schema))
    flow.sink("out", stream.key_by("k").compute(it=aggregate, name="o"), gw.sinks.noop())
    run = gw.testing.run(flow, {"rows": pa.Table.from_batches([rows])}, epochs=2)
    return run.current("out").sort_by("k")["it"].to_pylist()  # type: ignore[no-any-return]


def test_the_name_of_a_column_means_the_column() -> None:
    assert summed(gw.sum("odd * name")) == [4, 6]
    assert summed(gw.sum("`odd * name`")) == [4, 6]
    assert summed(gw.sum("`b`", where="`b` > 2")) == [7, None]


def test_what_has_no_value_names_expression_and_key() -> None:
    with pytest.raises(EpochFailedError, match=r"'a / b' cannot be computed for key \('b',\)") as e:
        summed(gw.sum("a / b"))
    assert "case when" in str(e.value.remedy)
    with pytest.raises(EpochFailedError, match=r"'a / b > 1' cannot .* key \('b',\)"):
        summed(gw.count(where="a / b > 1"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prise", "reads column 'prise', which.*Did you mean 'price'"),
        ("prise * 2", "reads column 'prise', which source 'rows' does not have"),
        ("arr delay", r"neither a column nor a valid expression: 'delay' is unexpected \(at char"),
        ("round(a)", "there is no function 'round'.*the functions abs, coalesce"),
        ("a ^ b", r"'\^ b' cannot be parsed \(at character 3\)"),
        ("1 + 1", "it refers to no column"),
        ("a * 1e400", r"1e400 does not fit a double \(at character 5\)"),
        ("s * 2", r"\(`s` \* 2\) cannot be evaluated \(s is string\)"),
        ("a || s", r"\(`a` \|\| `s`\) cannot be evaluated"),
        ("start + stop", "cannot be evaluated"),
        ("case when a then 1 end", "cannot be evaluated"),
        ("upper(s)", r"sum\('upper\(s\)'\) does not accept a column of type string"),
    ],
)
def test_what_is_neither_column_nor_expression_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidFlowError, match=f"(?s){said}"):
        summed(gw.sum(text))


def test_an_expression_is_described_as_a_column_is() -> None:
    def described(text: str) -> dict[str, object]:
        return computed(gw.sum(text), ROWS.schema).bind(ROWS.schema).describe()

    assert described("a*b") == described("a  *  b") != described("a * a")
    assert described("a * b")["column"] == "(`a` * `b`)"
    assert described("`b`") == described("b")
    plain = gw.sum("b")
    assert computed(plain, ROWS.schema) is plain


def test_a_changed_expression_is_a_changed_column(tmp_path: Any) -> None:
    def run(**results: Any) -> Any:
        flow = gw.Flow("f")
        stream = flow.source("rows", gw.testing.stream(ROWS.schema))
        totals = stream.key_by("k").compute(name="o", **results)
        flow.sink("out", totals, gw.sinks.noop())
        rows = pa.Table.from_batches([ROWS])
        return gw.testing.run(flow, {"rows": rows}, checkpoint=tmp_path / "ck").current("out")

    run(it=gw.sum("b * b"))
    assert sum(run(it=gw.sum("b*b"))["it"].to_pylist()) == 58
    with pytest.raises(gw.errors.GodwitError, match=r"\(`b` \* `b`\)"):
        run(it=gw.sum("b * 2"))
    found = run(it=gw.sum("b * b"), other=gw.sum("b * 2"))
    assert sum(found["other"].to_pylist()) == 18


def test_windows_and_changes_take_expressions() -> None:
    flow = gw.Flow("f")
    stream = flow.source("rows", gw.testing.stream(ROWS.schema), event_time="stop")
    keyed = stream.key_by("k")
    hourly = keyed.window(gw.tumbling("2 hours")).compute(total=gw.sum("b * 10"))
    flow.sink("hourly", hourly, gw.sinks.noop())
    session = keyed.window(gw.session("5 hours")).compute(longest=gw.max("stop - start"))
    flow.sink("sessions", session, gw.sinks.noop())
    changes = keyed.compute(total=gw.sum("b * 10"), output="changes")
    flow.sink("changes", changes, gw.sinks.noop())
    rows = pa.Table.from_batches([ROWS])
    run = gw.testing.run(flow, {"rows": rows}, epochs=2, close_at_end=True)
    assert sorted(run.rows("hourly")["total"].to_pylist()) == [0, 20, 30, 40]
    assert sorted(run.rows("sessions")["longest"].to_pylist()) == [
        dt.timedelta(hours=2),
        dt.timedelta(hours=3),
    ]
    assert sorted(run.rows("changes")["total"].to_pylist()) == [0, 0, 20, 40, 40, 70]
