"""A flow that was changed continues from its checkpoint: what stayed keeps its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, by_epoch, counted, drain, rows_of

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import CheckpointMismatchError
from godwit.ops.copying import copy_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.api.streams import KeyedStream, Stream

pytestmark = pytest.mark.spark


class Place:
    """A checkpoint and a directory that streams of several programs read."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.checkpoint = directory / "ck"
        self.inbox = Inbox(spark=spark, directory=directory / "in", columns="k string, v long")

    def run(
        self, build: Callable[[KeyedStream], dict[str, Stream]], *rows: tuple[str, int]
    ) -> tuple[dict[str, dict[int, Any]], gw.types.Query]:
        """Run a program over one more epoch; return what its sinks got, and the query."""
        if rows:
            self.inbox.put(list(rows))
        flow = gw.Flow("changing", num_key_groups=8)
        streams = build(flow.source("rows", self.inbox.stream()).key_by("k"))
        sinks = {name: gw.sinks.memory() for name in streams}
        for name, stream in streams.items():
            flow.sink(name, stream, sinks[name])
        query = drain(flow, self.checkpoint)
        return {name: by_epoch(sink.epochs) for name, sink in sinks.items()}, query


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def changed(query: gw.types.Query) -> events.FlowChanged | None:
    return next((e for e in query.events if isinstance(e, events.FlowChanged)), None)


def test_reordered_added_and_removed_results_keep_the_state_of_those_that_stayed(
    place: Place,
) -> None:
    place.run(
        lambda rows: {"out": rows.compute(name="o", t=gw.sum("v"), n=gw.count(), hi=gw.max("v"))},
        *[("a", 400), ("a", 3), ("b", 1)],
    )
    out, query = place.run(
        lambda rows: {"out": rows.compute(name="o", n=gw.count(), hi=gw.max("v"), t=gw.sum("v"))},
        ("a", 4),
    )
    assert out["out"][1] == counted([("a", 3, 400, 407)])
    out, query = place.run(
        lambda rows: {"out": rows.compute(name="o", t=gw.sum("v"), m=gw.mean("v"), n=gw.count())},
        *[("a", 1), ("b", 5)],
    )
    # The mean starts empty for keys that were there before.
    assert out["out"][2] == counted([("a", 408, 1.0, 4), ("b", 6, 5.0, 2)])
    told = changed(query)
    assert told is not None
    assert [line for line in sorted(told.results) if line.startswith("o.")] == [
        "o.hi was dropped",
        "o.m starts empty",
    ]


def test_operators_are_added_removed_renamed_and_come_back(place: Place) -> None:
    def total(rows: KeyedStream, name: str, formerly: str | None = None) -> Stream:
        return rows.compute(
            name=gw.types.Identity(name, formerly=formerly, starts_empty=True), t=gw.sum("v")
        )

    place.run(lambda rows: {"a": total(rows, "a"), "b": total(rows, "b")}, ("x", 1))
    out, query = place.run(
        lambda rows: {"a": total(rows, "c", formerly="a"), "new": total(rows, "a")}, ("x", 10)
    )
    assert out["a"][1] == counted([("x", 11)])
    assert out["new"][1] == counted([("x", 10)])
    told = changed(query)
    assert told is not None
    assert (told.added, told.removed, told.renamed) == (("a",), ("b",), {"a": "c"})
    assert "b is gone, its state is kept" in told.describe()
    # The same program again: nothing is renamed twice, nothing is said.
    out, query = place.run(
        lambda rows: {"a": total(rows, "c", formerly="a"), "new": total(rows, "a")}, ("x", 100)
    )
    assert (out["a"][2], out["new"][2]) == (counted([("x", 111)]), counted([("x", 110)]))
    assert changed(query) is None
    out, query = place.run(lambda rows: {"b": total(rows, "b")}, ("x", 1000))
    assert out["b"][3] == counted([("x", 1001)])
    told = changed(query)
    assert told is not None
    assert (told.returned, told.removed) == (("b",), ("a", "c"))


def test_a_changed_aggregate_is_refused_and_the_checkpoint_goes_on_without_the_change(
    place: Place,
) -> None:
    place.run(lambda rows: {"out": rows.compute(name="o", t=gw.sum("v"))}, ("a", 1))
    with pytest.raises(CheckpointMismatchError, match=r"'t': aggregate\.aggregate was 'sum'"):
        place.run(lambda rows: {"out": rows.compute(name="o", t=gw.max("v"))}, ("a", 2))
    out, _ = place.run(lambda rows: {"out": rows.compute(name="o", t=gw.sum("v"))})
    assert out["out"][1] == counted([("a", 3)])


def first_and_count(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
    state["n"] = state.get("n", 0) + len(rows)
    yield key[0], state["n"]


def test_a_changed_output_goes_on_and_its_last_epoch_is_brought_to_the_new_columns(
    place: Place, tmp_path: Path
) -> None:
    def run(schema: str, function: Any, path: str) -> tuple[Any, gw.types.Query]:
        flow = gw.Flow("changing", num_key_groups=8)
        rows = flow.source("rows", place.inbox.stream()).key_by("k")
        stream = rows.process(function, state=dict, output=schema, name="o")
        shown = gw.sinks.memory()
        flow.sink("shown", stream, shown)
        flow.sink("files", stream, gw.sinks.parquet(str(tmp_path / path)))
        query = drain(flow, place.checkpoint)
        return shown.epochs, query

    def in_words(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
        for _, count in first_and_count(key, rows, state):
            yield key[0], count, f"{count} rows"

    place.inbox.put([("a", 1)])
    run("k string, n long", first_and_count, "before")
    place.inbox.put([("a", 2)])
    epochs, query = run("k string, n long, words string", in_words, "after")
    assert [epochs[epoch].to_pylist() for epoch in sorted(epochs)] == [
        [{"k": "a", "n": 1, "words": None}],
        [{"k": "a", "n": 2, "words": "2 rows"}],
    ]
    told = changed(query)
    assert told is not None
    assert tuple(sorted(told.results)) == (
        "sink files: words is new, as 'string'",
        "sink shown: words is new, as 'string'",
    )
    written = place.inbox.spark.read.parquet(str(tmp_path / "after"))
    assert counted(rows_of(written.select("k", "n", "words"))) == counted(
        [("a", 1, None), ("a", 2, "2 rows")]
    )


def test_a_start_that_fails_before_its_first_epoch_claims_nothing(
    place: Place, spark: SparkSession
) -> None:
    def fails(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
        msg = "not yet right"
        raise ValueError(msg)

    def start(function: Any, name: str, groups: int, key: str) -> Any:
        flow = gw.Flow(name, num_key_groups=groups)
        rows = flow.source("rows", place.inbox.stream()).key_by(key)
        sink = gw.sinks.memory()
        stream = rows.process(function, state=dict, output="k string, n long", name="o")
        flow.sink("out", stream, sink)
        drain(flow, place.checkpoint)
        return by_epoch(sink.epochs)

    place.inbox.put([("a", 1)])
    with pytest.raises(gw.errors.GodwitError, match="not yet right"):
        start(fails, "wrong", 4, "v")
    assert start(first_and_count, "right", 8, "k") == {0: counted([("a", 1)])}


def test_the_order_of_operators_does_not_exchange_the_offsets_of_sources(
    spark: SparkSession, tmp_path: Path
) -> None:
    inboxes = {
        name: Inbox(spark=spark, directory=tmp_path / name, columns="k string, v long")
        for name in ("left", "right")
    }

    def run(*order: str) -> dict[str, Any]:
        flow = gw.Flow("two", num_key_groups=8)
        sinks = {name: gw.sinks.memory() for name in order}
        for name in order:
            keyed = flow.source(name, inboxes[name].stream()).key_by("k")
            flow.sink(name, keyed.compute(name=name, n=gw.count()), sinks[name])
        drain(flow, tmp_path / "ck")
        return {name: sink.epochs[max(sink.epochs)].to_pylist() for name, sink in sinks.items()}

    inboxes["left"].put([("a", 1)], [("a", 1)], [("a", 1)])
    inboxes["right"].put([("a", 1)])
    run("left", "right")
    inboxes["right"].put([("a", 1)])
    assert run("right", "left")["right"] == [{"k": "a", "n": 2}]
    with pytest.raises(CheckpointMismatchError, match="source 'right' is gone"):
        run("left")


def test_a_copy_goes_on_as_a_query_of_its_own_and_misses_and_doubles_nothing(
    place: Place, tmp_path: Path
) -> None:
    def totals(rows: KeyedStream) -> dict[str, Stream]:
        return {"out": rows.compute(name="o", t=gw.sum("v"), n=gw.count())}

    place.run(totals, ("a", 1))
    place.run(totals, *[("a", 10), ("b", 10)])
    made = copy_checkpoint(
        CheckpointStorage.open(place.checkpoint), CheckpointStorage.open(tmp_path / "fork")
    )
    fork = Place(place.inbox.spark, tmp_path)
    fork.checkpoint = tmp_path / "fork"
    out, query = place.run(totals, ("a", 100))
    forked, forks_query = fork.run(totals)
    assert out["out"][2] == forked["out"][2] == counted([("a", 111, 3)])
    assert forks_query.id.replace("-", "") == made.query_id
    assert forks_query.id != query.id
    # The fork's progress is its own: what comes now is a third epoch for both.
    out, _ = place.run(totals, ("b", 1000))
    forked, _ = fork.run(totals)
    assert out["out"][3] == forked["out"][3] == counted([("b", 1010, 2)])


def test_state_is_read_by_name_across_flow_versions(place: Place) -> None:
    place.run(
        lambda rows: {"out": rows.compute(name="o", t=gw.sum("v"), n=gw.count())},
        *[("a", 1), ("b", 2)],
    )
    place.run(
        lambda rows: {"out": rows.compute(name="o", hi=gw.max("v"), t=gw.sum("v"))}, ("a", 10)
    )
    state = gw.read_state(place.inbox.spark, place.checkpoint, "o")
    rows = {row["k"]: (row["t"], row["hi"]) for row in state.collect()}
    assert rows == {"a": (11, 10), "b": (2, None)}
    assert set(state.columns) == {"key_group", "k", "t", "hi"}
