"""``process_batch``: tables in, tables out, and state as columns."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.oracles.lane import Lane

import godwit as gw
from godwit.checkpoint.evolution import plain
from godwit.library.batch import BatchProcess
from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.operators.declared import StateColumns

KEYS = pa.schema({"symbol": pa.string()})
INPUTS = pa.schema({"price": pa.float64()})
STATE = pa.schema({"n": pa.int64(), "total": pa.float64()})
OUTPUT = pa.schema({"symbol": pa.string(), "total": pa.float64()})
NEW = {"n": 0, "total": 0.0}


def add_up(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
    size = states.num_rows
    total = pc.add(states["total"], np.bincount(key_of_row, rows["price"], minlength=size))
    n = pc.add(states["n"], np.bincount(key_of_row, minlength=size))
    new = pa.table({"n": n, "total": total, "symbol": states["symbol"]})
    return new.select(["total", "symbol"]), new


def operator(function: Any = add_up, **options: Any) -> BatchProcess:
    state = StateColumns(columns=options.pop("state", STATE), defaults=options.pop("new", NEW))
    return BatchProcess(
        name="sums",
        keys=KEYS,
        inputs=INPUTS,
        function=function,
        state=state,
        output=OUTPUT,
        **options,
    )


def batch(*rows: tuple[str | None, float | None]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "symbol": pa.array([symbol for symbol, _ in rows], pa.string()),
            "price": pa.array([price for _, price in rows], pa.float64()),
        }
    )


def sums(output: pa.RecordBatch) -> dict[str | None, float]:
    return {row["symbol"]: row["total"] for row in output.to_pylist()}


def test_state_lasts_over_epochs_and_new_keys_begin_with_the_defaults() -> None:
    lane = Lane(operator())
    assert sums(lane.epoch(batch(("a", 1.0), (None, 2.0), ("a", 3.0))).output) == {"a": 4, None: 2}
    assert sums(lane.epoch(batch(("b", 5.0), ("a", 0.5))).output) == {"b": 5, "a": 4.5}
    assert lane.store == {
        ("a",): {"n": 3, "total": 4.5},
        (None,): {"n": 1, "total": 2.0},
        ("b",): {"n": 1, "total": 5.0},
    }


def test_new_keys_have_nulls_where_there_is_no_default() -> None:
    seen = []

    def look(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        seen.append(states.to_pylist())
        assert rows.schema.names == ["symbol", "price"]
        return None, states.append_column(
            "n", pa.array(np.bincount(key_of_row, minlength=states.num_rows))
        ) if "n" not in states.schema.names else states

    Lane(operator(look, new={})).epoch(batch(("a", 1.0)))
    assert seen == [[{"symbol": "a", "n": None, "total": None}]]


def test_states_are_found_by_key_in_any_order_and_keys_left_out_keep_theirs() -> None:
    def only_b_and_a(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        _, new = add_up(rows, states, key_of_row)
        keys = new["symbol"].to_pylist()
        return None, new.take([keys.index(key) for key in ("b", "a") if key in keys])

    lane = Lane(operator(only_b_and_a))
    lane.epoch(batch(("a", 1.0), ("b", 2.0), ("c", 3.0)))
    lane.epoch(batch(("a", 1.0)))
    assert lane.store == {("a",): {"n": 2, "total": 2.0}, ("b",): {"n": 1, "total": 2.0}}


def test_states_without_keys_are_in_order() -> None:
    def in_order(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        return None, add_up(rows, states, key_of_row)[1].drop_columns(["symbol"])

    lane = Lane(operator(in_order))
    lane.epoch(batch(("a", 1.0), ("b", 2.0)))
    assert lane.store[("b",)] == {"n": 1, "total": 2.0}


def test_keys_are_dropped_where_the_function_says_so() -> None:
    def drop_small(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        _, new = add_up(rows, states, key_of_row)
        return None, new, pc.less(new["total"], 2.0)

    def drop_all(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        return None, None, np.ones(states.num_rows, np.bool_)

    lane = Lane(operator(drop_small))
    lane.epoch(batch(("a", 1.0), ("b", 2.0)))
    assert set(lane.store) == {("b",)}
    Lane(operator(drop_all)).epoch(batch(("a", 1.0)))


def test_nothing_returned_changes_nothing() -> None:
    lane = Lane(operator(lambda rows, states, key_of_row: None))
    assert lane.epoch(batch(("a", 1.0))).output.num_rows == 0
    assert lane.store == {}


def test_tables_of_pandas_keep_numbers_as_they_are() -> None:
    def with_pandas(rows: Any, states: Any, key_of_row: Any) -> Any:
        total = rows.groupby(key_of_row)["price"].sum()
        states["total"] = states["total"].fillna(0.0) + total.to_numpy()
        return states[["symbol", "total"]], states

    lane = Lane(operator(with_pandas, frames="pandas", new={"n": 2**53 + 1}))
    assert sums(lane.epoch(batch(("a", 1.0), ("b", 2.0), ("a", 3.0))).output) == {"a": 4, "b": 2}
    assert lane.store[("a",)] == {"n": 2**53 + 1, "total": 4.0}


def test_what_speaks_arrow_is_a_table() -> None:
    class Frame:
        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return self.table.__arrow_c_stream__(requested_schema)

    def framed(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        return tuple(map(Frame, add_up(rows, states, key_of_row)))

    assert sums(Lane(operator(framed)).epoch(batch(("a", 1.0))).output) == {"a": 1}


def returns(make: Any) -> Any:
    def function(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        return make(states)

    return function


WRONG: list[tuple[Any, str, str]] = [
    (lambda s: s, "returned a Table", "Return two tables"),
    (lambda s: (None,), "a tuple of 1", "Return two tables"),
    (lambda s: (3, None), "a int for the rows to emit", "Return a table"),
    (lambda s: (s.select(["symbol"]), None), "without column 'total'", "symbol: string, total:"),
    (
        lambda s: (s.select(["symbol", "total"]).append_column("x", s["n"]), None),
        "unknown column 'x'",
        "symbol: string",
    ),
    (lambda s: (None, s.select(["n", "total"]).slice(1)), "1 states for 2 keys", "in order"),
    (lambda s: (None, pa.concat_tables([s, s])), "a second time: ('", "at most one"),
    (
        lambda s: (None, s.set_column(0, "symbol", pa.array(["a", "z"]))),
        "no row in the epoch: ('z',)",
        "at most one",
    ),
    (
        lambda s: (None, s.set_column(1, "n", pa.array(["x", "y"]))),
        "string in column 'n' of the states, which is int64",
        "Convert it",
    ),
    (lambda s: (None, None, [True]), "for the keys to drop", "Return 2 booleans"),
]


@pytest.mark.parametrize(("make", "what", "remedy"), WRONG)
def test_what_does_not_fit_is_refused(make: Any, what: str, remedy: str) -> None:
    with pytest.raises(UserFunctionError) as caught:
        Lane(operator(returns(make))).epoch(batch(("a", 1.0), ("b", 1.0)))
    assert what in caught.value.message, caught.value.message
    assert remedy in caught.value.remedy, caught.value.remedy
    assert "'sums'" in caught.value.message


def test_timestamps_without_a_zone_are_of_the_sessions() -> None:
    moments = [dt.datetime(2024, 7, 1, 12), None]  # noqa: DTZ001 - as functions return them
    of = BatchProcess(
        name="moments",
        keys=KEYS,
        inputs=INPUTS,
        function=lambda *_: (pa.table({"at": moments}), None),
        state=StateColumns(columns=STATE),
        output=pa.schema({"at": pa.timestamp("us", "Europe/Berlin")}),
        zone="Europe/Berlin",
    )
    emitted = (
        Lane(of).epoch(batch(("a", 1.0))).output.cast(pa.schema({"at": pa.timestamp("us", "UTC")}))
    )
    expected = [dt.datetime(2024, 7, 1, 10, tzinfo=dt.UTC), None]
    assert emitted.column("at").to_pylist() == expected


def test_an_error_of_the_function_says_for_how_many_rows() -> None:
    def fails(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(UserFunctionError, match="raised ValueError for 2 rows of 1 keys: no"):
        Lane(operator(fails)).epoch(batch(("a", 1.0), ("a", 1.0)))


def test_the_checkpoint_describes_columns_and_takes_new_ones() -> None:
    described = operator().describe_state()
    assert (described.codec, [name for name, _ in described.columns]) == ("arrow", ["n", "total"])
    more = pa.schema([*STATE, pa.field("last", pa.float64())])
    upgrade = operator(state=more, new={**NEW, "last": 7.0}).upgrade_from(described)
    assert upgrade is not None
    assert plain(described)


@dataclasses.dataclass
class Sums:
    n: int = 0
    total: float = 0.0


@dataclasses.dataclass
class Unset:
    n: int


@dataclasses.dataclass
class Total:
    symbol: str
    total: float


def batch_flow(function: Any = add_up, **options: Any) -> gw.Flow:
    flow = gw.Flow("market", num_key_groups=4)
    stream = flow.source("orders", gw.testing.stream("symbol string, price double"))
    given = {"state": Sums, "output": Total, **options}
    flow.sink("out", stream.key_by("symbol").process_batch(function, **given), gw.sinks.noop())
    return flow


def test_a_flow_takes_classes_and_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    flow = batch_flow()
    rows = [{"symbol": "A", "price": 1.0}, {"symbol": "A", "price": 2.0}]
    assert gw.testing.run(flow, {"orders": rows}).rows("out").to_pylist() == [
        {"symbol": "A", "total": 3.0}
    ]
    flow.explain()
    text = capsys.readouterr().out
    assert "process batches of arrow tables with add_up, state n int64, total double" in text


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"state": None}, "no columns of state", 'state="count long'),
    ({"output": None}, "no output columns", "output="),
    ({"state": Unset}, "has a field 'n' without a default", "n: int | None = None"),
    ({"state": "a array<int>"}, "state cannot hold", "process(...)"),
    ({"state": "symbol string"}, "both as key and as state", "Leave the key columns out"),
    ({"frames": "panda"}, "frames='panda'", "Did you mean 'pandas'?"),
    (
        {"function": lambda rows: None},
        "cannot be called as function(rows, states, key_of_row)",
        "three arguments",
    ),
]


@pytest.mark.parametrize(("options", "what", "remedy"), REFUSED)
def test_a_wrong_declaration_is_refused_before_anything_runs(
    options: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(InvalidFlowError) as caught:
        batch_flow(**options).compiled()
    assert what in caught.value.message, caught.value.message
    assert remedy in caught.value.remedy, caught.value.remedy
