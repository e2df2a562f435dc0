"""State whose class changes between two runs, and functions that would end their process."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain, rows_of

import godwit as gw
from godwit.model.errors import CheckpointMismatchError, UserFunctionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@dataclasses.dataclass
class Totals:
    total: int = 0
    seen: list[tuple[int, int]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Sums:
    sum: float = 0.0
    seen: list[tuple[int, int]] = dataclasses.field(default_factory=list)


def add_up(key: tuple[int], rows: Any, totals: Totals) -> Iterator[tuple[int, int]]:
    for row in rows:
        if (key[0], row.v) not in totals.seen:
            totals.seen.append((key[0], row.v))
            totals.total += row.v
    yield key[0], totals.total


def add_more(key: tuple[int], rows: Any, sums: Sums) -> Iterator[tuple[int, int]]:
    for row in rows:
        if (key[0], row.v) not in sums.seen:
            sums.seen.append((key[0], row.v))
            sums.sum += row.v
    yield key[0], int(sums.sum)


def to_sums(old: dict[str, Any]) -> Sums:
    return Sums(sum=float(old["total"]), seen=old["seen"])


def flow_of(inbox: Inbox, function: Any, **options: Any) -> tuple[gw.Flow, gw.sinks.MemorySink]:
    flow = gw.Flow("totals", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).key_by("k")
    totals = stream.process(function, output="k long, total long", name="totals", **options)
    sink = gw.sinks.memory()
    flow.sink("out", totals, sink)
    return flow, sink


def test_a_changed_class_is_refused_or_brought_forward(spark: SparkSession, tmp_path: Path) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k long, v long")
    inbox.put([(1, 5), (2, 7)], [(1, 5), (1, 6)])
    drain(flow_of(inbox, add_up, state=Totals)[0], tmp_path / "ck")

    inbox.put([(1, 6), (1, 1)])
    with pytest.raises(CheckpointMismatchError, match="Sums: total gone and sum new"):
        drain(flow_of(inbox, add_more, state=Sums)[0], tmp_path / "ck")

    flow, sink = flow_of(inbox, add_more, state=gw.ValueState(Sums, upgrade=to_sums))
    drain(flow, tmp_path / "ck")
    assert rows_of(sink.table("k")) == [(1, 12)]
    held = gw.read_state(spark, tmp_path / "ck", "totals").select("k", "state").collect()
    states = {row.k: json.loads(row.state) for row in held}
    assert states[1] == {"sum": 12.0, "seen": [[1, 5], [1, 6], [1, 1]]}


def test_a_function_that_would_end_its_process_fails_by_name_and_the_query_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    def leave(key: tuple[int], rows: Any, totals: Totals) -> Any:
        if key == (2,):
            sys.exit("enough")
        return add_up(key, rows, totals)

    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k long, v long")
    inbox.put([(1, 5), (2, 7)])
    with pytest.raises(UserFunctionError) as caught:
        drain(flow_of(inbox, leave, state=Totals)[0], tmp_path / "ck")
    assert "of operator 'totals' raised SystemExit for key (2,): enough" in caught.value.message
    assert "query.stop()" in caught.value.remedy
    assert caught.value.context["traceback"].count("File ") == 1
    flow, sink = flow_of(inbox, add_up, state=Totals)
    drain(flow, tmp_path / "ck")
    assert sorted(rows_of(sink.table("k"))) == [(1, 5), (2, 7)]
