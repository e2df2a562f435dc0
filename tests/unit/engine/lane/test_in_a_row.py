"""Operators in a row that share a component: what comes out is what comes out of one apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.fake_flow import FakeSink
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.engine.outcomes import traffic_between
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

Build = Callable[["KeyedStream"], "Stream"]
TWO = {"a": 1, "b": 1}


def sums(keyed: KeyedStream) -> Stream:
    """Four sums in a row."""
    stream = keyed.compute(name="first", n=gw.count(), v=gw.sum("v"))
    for name in ("second", "third", "fourth"):
        stream = stream.key_by("k").compute(name=name, n=gw.count(), v=gw.sum("v"))
    return stream


def windows(keyed: KeyedStream) -> Stream:
    """Long windows over what short ones give when they close."""
    short = keyed.window(gw.tumbling("10 seconds"), name="short", late=FakeSink())
    long = short.compute(v=gw.sum("v")).key_by("k").window(gw.tumbling("30 seconds"), name="long")
    return long.compute(v=gw.sum("v"), n=gw.count())


def plus_one(table: pa.Table) -> pa.Table:
    """Change a column that is no key."""
    return table.set_column(table.schema.get_field_index("v"), "v", [_more(table["v"])])


def _more(column: pa.ChunkedArray) -> pa.Array:
    return pc.add(column, 1).combine_chunks()


def mapped(keyed: KeyedStream) -> Stream:
    """A map that leaves keys as they are lies between."""
    first = keyed.compute(name="first", v=gw.sum("v"))
    return first.map(plus_one).key_by("k").compute(name="second", v=gw.sum("v"))


def each(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
    """Give every row on, numbered."""
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield key[0], row.v, state["n"]


def functions(keyed: KeyedStream) -> Stream:
    """Two functions in a row: the second one sees the order that the first one gives."""
    first = keyed.process(each, state=dict, output="k string, v long, n long", name="first")
    return first.key_by("k").process(each, state=dict, output="k string, v long, n long")


def rows_of(rng: np.random.Generator, epoch: int) -> list[tuple[str, int | None, int]]:
    second = 1_000_000
    times = (epoch * 20 * second + rng.integers(0, 40 * second, 200)).tolist()
    keys = [f"key {k}" for k in rng.integers(0, 30, 200).tolist()]
    return list(zip(keys, times, rng.integers(-9, 10, 200).tolist(), strict=True))


@pytest.mark.parametrize("build", [sums, windows, mapped, functions])
def test_operators_in_a_row_give_the_same_rows_together_as_apart(
    tmp_path: Path, build: Build
) -> None:
    apart = WindowedRun(build, tmp_path / "apart", executors=TWO, slack="5 seconds")
    row = WindowedRun(build, tmp_path / "row", executors=TWO, together=True, slack="5 seconds")
    rng, seen = np.random.default_rng(7), 0
    for epoch in range(6):
        parts = [rows_of(rng, epoch), rows_of(rng, epoch)]
        expected = apart.epoch(*parts)
        assert row.epoch(*parts) == expected
        assert row.left_out() == apart.left_out()
        seen += len(expected)
    assert seen
    assert {report.level for report in row.reports} == {1}
    assert not any(p.exchanged for report in row.reports for p in report.passed_on)
    assert traffic_between(row.reports) == traffic_between(apart.reports)
    for index in range(len(row.compiled.operators)):
        assert row.run.held(index) == apart.run.held(index)


def test_rows_of_suspended_key_groups_wait_once_for_operators_in_a_row(tmp_path: Path) -> None:
    apart = WindowedRun(sums, tmp_path / "apart", executors=TWO)
    row = WindowedRun(sums, tmp_path / "row", executors=TWO, together=True)
    rng = np.random.default_rng(7)
    for epoch in range(6):
        rows = rows_of(rng, epoch)
        for run in (row, apart):
            run.run.suspended = frozenset(range(5)) if epoch in (1, 2) else frozenset()
        apart.epoch(rows)
        row.epoch(rows)
        assert row.output("out") == apart.output("out")
        assert row.run.waiting(1) == []
        assert bool(row.run.waiting(0)) == (epoch in (1, 2))


def swapped(table: pa.Table) -> pa.Table:
    """Give all rows one key."""
    return table.set_column(0, "k", [pa.array(["same"] * table.num_rows, pa.string())])


@pytest.mark.parametrize("by", ["map", "function"])
def test_a_row_that_was_given_the_key_of_another_lane_refuses_the_epoch(
    tmp_path: Path, by: str
) -> None:
    def renaming(keyed: KeyedStream) -> Stream:
        if by == "map":
            stream = keyed.compute(name="first", v=gw.sum("v")).map(swapped)
        else:
            stream = keyed.process(other_key, state=dict, output="k string, v long", name="first")
        return stream.key_by("k").compute(name="second", v=gw.sum("v"))

    def other_key(key: tuple[str], rows: Any, state: Any) -> Any:
        return [("same", 1)]

    run = WindowedRun(renaming, tmp_path, executors=TWO, together=True)
    with pytest.raises(EpochFailedError, match="'first' and 'second' share") as caught:
        run.epoch(rows_of(np.random.default_rng(7), 0))
    assert ("map 'swapped'" if by == "map" else "its function") in str(caught.value)
    assert caught.value.context["key"] == {"k": "same"}
