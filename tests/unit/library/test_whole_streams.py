"""``key_by()`` without columns: a whole stream is one group, whose results have no key."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.model.errors import EpochFailedError, InvalidFlowError, SinkError
from godwit.sinks.rows import upsert_keys
from godwit.sinks.sink import SinkContext

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

COLUMNS = "k string, v int, ts timestamp"
ROWS = [
    {"k": "ab"[i % 2], "v": i, "ts": dt.datetime(2026, 3, 1, 0, i, tzinfo=dt.UTC)}
    for i in range(12)
]


@dataclass
class Total:
    """State with a default."""

    total: int = 0


def played(make: Callable[[KeyedStream], Stream], **options: Any) -> gw.testing.Run:
    """Run over `ROWS`, on two executors, of an operator on the whole stream."""
    flow = gw.Flow("whole")
    stream = flow.source("rows", gw.testing.stream(COLUMNS), event_time="ts")
    flow.sink("out", make(stream.key_by()), gw.sinks.noop())
    options = {"epochs": 3, "executors": 2, "close_at_end": True, **options}
    return gw.testing.run(flow, {"rows": ROWS}, **options)


def test_aggregates_of_a_whole_stream_have_no_key() -> None:
    run = played(lambda rows: rows.compute(n=gw.count(), total=gw.sum("v")))
    assert run.rows("out").to_pylist() == [
        {"n": 4, "total": 6},
        {"n": 8, "total": 28},
        {"n": 12, "total": 66},
    ]
    assert run.current("out").to_pylist() == [{"n": 12, "total": 66}]


def test_rows_are_counted_where_no_column_is_read() -> None:
    assert played(lambda rows: rows.compute(n=gw.count())).current("out").to_pylist() == [{"n": 12}]


def test_a_whole_stream_has_complete_results_and_changes() -> None:
    run = played(lambda rows: rows.compute(n=gw.count(), output="complete"))
    assert run.current("out").to_pylist() == [{"n": 12}]
    run = played(lambda rows: rows.compute(n=gw.count(), output="changes"))
    assert [tuple(row.values()) for row in run.rows("out").to_pylist()] == [
        (4, 1),
        (4, -1),
        (8, 1),
        (8, -1),
        (12, 1),
    ]


@pytest.mark.parametrize("consolidate", ["together", "apart"])
def test_windows_of_a_whole_stream_have_no_key(consolidate: Any) -> None:
    run = played(
        lambda rows: rows.window(gw.tumbling("6 minutes"), consolidate=consolidate).compute(
            n=gw.count(), total=gw.sum("v")
        )
    )
    assert run.rows("out").drop_columns("window_end").to_pylist() == [
        {"window_start": ROWS[0]["ts"], "n": 6, "total": 15},
        {"window_start": ROWS[6]["ts"], "n": 6, "total": 51},
    ]
    assert run.flow.outputs[0].unique_keys[0] == ("window_start", "window_end")


def test_sessions_and_windows_of_rows_of_a_whole_stream_have_no_key() -> None:
    run = played(lambda rows: rows.window(gw.session("2 minutes")).compute(n=gw.count()))
    assert run.rows("out")["n"].to_pylist() == [12]
    run = played(lambda rows: rows.window(gw.rows(5)).compute(n=gw.sum("v")))
    assert run.rows("out").to_pylist() == [
        {"window_number": 0, "n": 10},
        {"window_number": 1, "n": 35},
    ]


@pytest.mark.parametrize("result", ["v / (v - 3)", "9223372036854775800 + v"])
@pytest.mark.parametrize("window", [None, gw.tumbling("3 minutes"), gw.session("1 hour")])
def test_errors_say_that_a_whole_stream_has_the_empty_key(window: Any, result: str) -> None:
    def make(rows: KeyedStream) -> Stream:
        return (rows if window is None else rows.window(window)).compute(r=gw.sum(result))

    with pytest.raises(EpochFailedError, match=r"for key \(\)") as error:
        played(make)
    assert error.value.context["key"] == ()


def test_late_rows_of_a_whole_stream_come_out_as_they_came() -> None:
    late = gw.sinks.memory()
    run = played(lambda rows: rows.window(gw.tumbling("1 minute"), late=late).compute(n=gw.count()))
    run.epoch({"rows": ROWS[:1]})
    (output,) = [output for output in run.flow.outputs if output.left_out]
    assert run.rows(output.name).to_pylist() == [{**ROWS[0], "reason": "late"}]


def test_functions_get_the_empty_key_and_all_rows() -> None:
    def seen(key: tuple[Any, ...], rows: Any, state: Any) -> list[tuple[Any, ...]]:
        state.value += sum(row.v for row in rows)
        return [(repr(key), state.value)]

    run = played(lambda rows: rows.process(seen, state=int, output="key string, total long"))
    assert [tuple(row.values()) for row in run.rows("out").to_pylist()] == [
        ("()", 6),
        ("()", 28),
        ("()", 66),
    ]
    assert run.state("rows_seen_of_all").column_names == ["key_group", "state"]

    def over(key: tuple[Any, ...], rows: Any, window: Any) -> list[tuple[Any, ...]]:
        first, *_ = every = list(rows)
        assert [row.v for row in every] == list(range(first.v, first.v + 6))
        assert first._fields == ("k", "v", "ts")
        return [(repr(key), len(rows))]

    run = played(
        lambda rows: rows.window(gw.tumbling("6 minutes")).process(over, output="k string, n long")
    )
    assert [tuple(row.values()) for row in run.rows("out").to_pylist()] == [("()", 6), ("()", 6)]


def test_functions_over_tables_get_no_key_column() -> None:
    def add(rows: pa.Table, states: pa.Table, key_of_row: Any) -> tuple[pa.Table, pa.Table]:
        assert rows.column_names == ["k", "v", "ts"]
        assert states.column_names == ["total"]
        assert not key_of_row.any()
        total = states["total"][0].as_py() + sum(rows["v"].to_pylist())
        new = pa.table({"total": [total]})
        return new, new

    run = played(
        lambda rows: rows.process_batch(add, state=Total, output="total long", name="adds")
    )
    assert run.rows("out")["total"].to_pylist() == [6, 28, 66]


def test_state_of_a_whole_stream_is_resumed_and_moves(tmp_path: Path) -> None:
    run = played(lambda rows: rows.compute(n=gw.count(), name="all"), checkpoint=tmp_path / "ck")
    home = run.state("all")["key_group"][0].as_py()
    for executor in ("1", "2"):
        run.migrate({home: executor}, component="all")
        run.epoch({"rows": ROWS[:1]})
    run.close()
    run = played(lambda rows: rows.compute(n=gw.count(), name="all"), checkpoint=tmp_path / "ck")
    assert run.current("out").to_pylist() == [{"n": 26}]


def test_results_of_a_whole_stream_feed_other_operators() -> None:
    flow = gw.Flow("whole")
    rows = flow.source("rows", gw.testing.stream(COLUMNS))
    sums = rows.key_by("k").compute(total=gw.sum("v"), output="changes")
    every = sums.as_rows().key_by().compute(total=gw.sum("total * change"), name="all")
    flow.sink("out", every.key_by().compute(top=gw.max("total"), name="top"), gw.sinks.noop())
    run = gw.testing.run(flow, {"rows": ROWS}, epochs=3)
    assert run.current("out").to_pylist() == [{"top": 66}]


def test_a_join_needs_columns() -> None:
    flow = gw.Flow("whole")
    rows = flow.source("rows", gw.testing.stream(COLUMNS), event_time="ts")
    others = flow.source("others", gw.testing.stream(COLUMNS), event_time="ts")
    with pytest.raises(InvalidFlowError, match=r"cannot be joined.*Key both streams"):
        rows.key_by().join(others.key_by("k"), between=("0 s", "1 s"))
    with pytest.raises(InvalidFlowError, match="cannot be joined"):
        rows.key_by().join_newest(others.key_by())
    with pytest.raises(InvalidFlowError, match="given a stream without key columns"):
        rows.key_by("k").process(
            lambda key, rows, state, rates: [],
            state=int,
            output="k string",
            broadcast={"rates": others.key_by()},
        )
    with pytest.raises(InvalidFlowError, match="'k' is not a key column"):
        rows.key_by(partition_by="k")


def test_one_row_is_upserted_by_a_column_that_is_named() -> None:
    context = SinkContext(
        name="out",
        writer="out",
        flow="whole",
        query_id="q",
        schema=pa.schema({"id": pa.int32(), "n": pa.int64()}),
        keys=(),
        unique_keys=((),),
        mapped=True,
        complete=False,
        views=None,  # type: ignore[arg-type]  # none are shown
    )
    assert upsert_keys(context, ["id"]) == ("id",)
    with pytest.raises(SinkError, match=r"one row.*constant column in a map"):
        upsert_keys(context, None)


def test_a_result_may_have_the_name_of_an_option() -> None:
    run = played(
        lambda rows: rows.compute({"name": gw.last("v"), "output": gw.count()}, n=gw.count())
    )
    assert run.current("out").to_pylist() == [{"name": 11, "output": 12, "n": 12}]
    run = played(lambda rows: rows.window(gw.rows(12)).compute({"results": gw.count()}))
    assert run.rows("out")["results"].to_pylist() == [12]
    with pytest.raises(InvalidFlowError, match=r'in a dict, as in compute\(\{"name": gw.last'):
        played(lambda rows: rows.compute(name=gw.last("v")))  # type: ignore[arg-type]
    with pytest.raises(InvalidFlowError, match="'n' twice"):
        played(lambda rows: rows.compute({"n": gw.count()}, n=gw.count()))
    with pytest.raises(InvalidFlowError, match="of type list instead of results"):
        played(lambda rows: rows.compute([gw.count()]))  # type: ignore[arg-type]
    for name in ("", 1):
        with pytest.raises(InvalidFlowError, match=f"a result with {name!r} as its name"):
            played(lambda rows, name=name: rows.compute({name: gw.count()}))  # type: ignore[misc]
    with pytest.raises(
        InvalidFlowError, match=r"1 argument by position, and 2 .*compute\(results, n"
    ):
        played(lambda rows: rows.compute({}, {}))  # type: ignore[arg-type,call-arg]
