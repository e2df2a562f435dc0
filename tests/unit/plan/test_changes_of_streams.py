"""Kinds of streams: who takes changes, what keeps their sign, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = "id long, v long, change byte, ts timestamp"


def _flow() -> tuple[gw.Flow, Any]:
    flow = gw.Flow("changes")
    return flow, flow.source("rows", gw.testing.stream(COLUMNS), event_time="ts")


def _kind_at_sink(build: Callable[[Any], Any]) -> tuple[str, tuple[str, ...]]:
    flow, rows = _flow()
    flow.sink("out", build(rows), gw.sinks.noop())
    [output] = flow.compiled().outputs
    return output.kind, output.table_keys


@pytest.mark.parametrize(
    ("build", "kind", "keys"),
    [
        (lambda rows: rows, "rows", ()),
        (lambda rows: rows.as_changes(), "changes", ()),
        (lambda rows: rows.as_upserts(), "upserts", ()),
        (lambda rows: rows.as_changes().as_rows(), "rows", ()),
        (lambda rows: rows.as_changes().map(lambda df: df.select("id", "change")), "changes", ()),
        (lambda rows: rows.as_changes().union(rows.as_changes()), "changes", ()),
        (lambda rows: rows.as_upserts().key_by("id").latest(), "changes", ("id",)),
        (lambda rows: rows.key_by("id").compute(n=gw.count()), "rows", ()),
        (
            lambda rows: rows.key_by("id").compute(n=gw.count(), output="changes"),
            "changes",
            ("id",),
        ),
    ],
)
def test_a_stream_knows_whether_it_carries_changes(
    build: Callable[[Any], Any], kind: str, keys: tuple[str, ...]
) -> None:
    assert _kind_at_sink(build) == (kind, keys)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (
            lambda rows: (
                rows.as_changes().key_by("id").window(gw.session("1 hour")).compute(n=gw.count())
            ),
            r"would read changes of a table of source 'rows', and takes rows only",
        ),
        (
            lambda rows: rows.as_changes().key_by("id").process(print, state=int, output="n long"),
            "and takes rows only",
        ),
        (
            lambda rows: rows.as_changes().drop_duplicates("id", within="1 hour"),
            "and takes rows only",
        ),
        (
            lambda rows: (
                rows.as_changes()
                .key_by("id")
                .join(
                    rows.map(lambda df: df.select("id", "ts")).key_by("id"), between=("0 s", "1 s")
                )
            ),
            "and takes rows only",
        ),
        (
            lambda rows: rows.as_upserts().key_by("id").compute(n=gw.count()),
            "would read upserts and deletes by key of source 'rows'",
        ),
        (
            lambda rows: rows.as_upserts().drop_duplicates("id", within="forever"),
            "takes rows and changes of a table only",
        ),
        (lambda rows: rows.union(rows.as_changes()), "a union of changes of a table and rows"),
        (
            lambda rows: rows.map(lambda df: df.select("id")).as_changes(),
            "need a column 'change': its columns are 'id'",
        ),
        (
            lambda rows: rows.map(
                lambda df: (
                    df.withColumnRenamed("id", "x")
                    .withColumnRenamed("change", "y")
                    .withColumnRenamed("v", "change")
                )
            ).as_changes(),
            "its type is int64, not int8",
        ),
    ],
)
def test_what_cannot_take_changes_refuses_them(build: Callable[[Any], Any], problem: str) -> None:
    flow, rows = _flow()
    flow.sink("out", build(rows), gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match=problem) as error:
        flow.compiled()
    assert error.value.remedy


def test_a_loop_takes_no_changes() -> None:
    flow = gw.Flow("loop")
    columns = "id long, change byte"
    loop = flow.feedback("again", columns)
    rows = flow.source("rows", gw.testing.stream(columns)).union(loop)
    out = rows.key_by("id").process(lambda *_: [], state=int, output=columns)
    out.as_changes().feed_back_to(loop)
    flow.sink("out", out, gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match="Loop 'again' would read changes of a table"):
        flow.compiled()


@pytest.mark.parametrize("output", ["changes", "update"])
def test_the_current_rows_of_changes_are_those_of_the_table(output: Any) -> None:
    flow = gw.Flow("current")
    rows = flow.source("rows", gw.testing.stream("k string, v array<int>, change byte"))
    flow.sink("rows", rows.as_changes(), gw.sinks.noop())
    counts = rows.as_changes().key_by("k").compute(n=gw.count(), output=output)
    flow.sink("counts", counts, gw.sinks.noop())
    changes = [("a", [1], 1), ("b", [2], 1), ("a", [1], 1), ("b", [2], -1), ("a", [1], -1)]
    run = gw.testing.run(flow, {"rows": [[change] for change in changes]})
    assert run.current("rows").to_pylist() == [{"k": "a", "v": [1]}]
    assert run.current("counts").to_pylist() == [{"k": "a", "n": 1}]
