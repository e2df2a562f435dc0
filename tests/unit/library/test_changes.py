"""``compute(output="changes")``: what no longer holds and what does now, so results feed others."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.oracles.lane import Lane

import godwit as gw
from godwit.library.compute import ComputeOperator
from godwit.model.errors import InvalidFlowError, SinkError

KEYS = pa.schema({"plane": pa.string()})
INPUTS = pa.schema({"delay": pa.float64()})


def lane(**aggregates: Any) -> Lane:
    return Lane(
        ComputeOperator(
            name="delays", keys=KEYS, inputs=INPUTS, aggregates=aggregates, mode="changes"
        )
    )


def batch(*rows: tuple[str, float | None]) -> pa.RecordBatch:
    planes, delays = zip(*rows, strict=True) if rows else ((), ())
    return pa.record_batch(
        {"plane": pa.array(planes, pa.string()), "delay": pa.array(delays, pa.float64())}
    )


def changes(of: Lane, *rows: tuple[str, float | None]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in of.epoch(batch(*rows)).output.to_pylist()]


def test_the_first_result_of_a_key_is_added_and_a_later_one_replaces_it() -> None:
    of = lane(worst=gw.max("delay"))
    assert changes(of, ("a", 1.0)) == [("a", 1.0, 1)]
    assert sorted(changes(of, ("a", 2.0), ("b", 5.0))) == [
        ("a", 1.0, -1),
        ("a", 2.0, 1),
        ("b", 5.0, 1),
    ]


def test_what_no_longer_holds_comes_first() -> None:
    of = lane(n=gw.count())
    assert [row[-1] for row in changes(of, ("a", 1.0), ("b", 1.0))] == [1, 1]
    assert [row[-1] for row in changes(of, ("a", 1.0), ("b", 1.0))] == [-1, -1, 1, 1]


def test_a_result_that_stays_what_it_is_does_not_change() -> None:
    of = lane(worst=gw.max("delay"))
    assert len(changes(of, ("a", 9.0), ("c", None))) == 2
    assert changes(of, ("a", 3.0), ("c", None)) == []


def test_lists_are_compared_and_nan_is_taken_to_change() -> None:
    of = lane(seen=gw.collect_set("delay"))
    changes(of, ("a", 1.0))
    assert changes(of, ("a", 1.0)) == []
    assert changes(of, ("a", 2.0)) == [("a", [1.0], -1), ("a", [1.0, 2.0], 1)]
    nan = lane(worst=gw.max("delay"))
    changes(nan, ("a", float("nan")))
    assert [sign for *_, sign in changes(nan, ("a", 0.0))] == [-1, 1]


@pytest.mark.parametrize("seed", range(2))
def test_results_of_results_are_those_of_the_newest_results_alone(seed: int) -> None:
    rng = random.Random(seed)
    epochs = [
        [{"plane": rng.choice("abcdefgh")} for _ in range(rng.randrange(1, 9))] for _ in range(6)
    ]
    flow = gw.Flow("flights")
    planes = flow.source("planes", gw.testing.stream("plane string"))
    flights = planes.key_by("plane").compute(flights=gw.count(), output="changes")
    busy = flights.as_rows().key_by("flights").compute(planes=gw.sum("change"))
    flow.sink("busy", busy, gw.sinks.noop())
    played = gw.testing.cluster(flow, executors=2)
    seen: Counter[str] = Counter()
    for number, rows in enumerate(epochs):
        played.epoch({"planes": rows})
        if number == 3:
            played.kill("2")
        seen.update(row["plane"] for row in rows)
        now = {row["flights"]: row["planes"] for row in played.current("busy").to_pylist()}
        assert {n: planes for n, planes in now.items() if planes} == Counter(seen.values())
    played.close()


@pytest.mark.parametrize(
    ("aggregate", "results"),
    [
        (gw.count_distinct("note"), [1, 2, 1]),
        (gw.collect_list("note"), [["x"], ["x", "y"], ["z"]]),
        (gw.collect_set("note"), [["x"], ["x", "y"], ["z"]]),
    ],
    ids=["count_distinct", "collect_list", "collect_set"],
)
def test_states_of_entries_may_be_those_of_new_keys(aggregate: Any, results: list[Any]) -> None:
    flow = gw.Flow("notes")
    notes = flow.source("notes", gw.testing.stream("plane string, note string"))
    of_plane = notes.key_by("plane").compute(notes=aggregate, output="changes")
    flow.sink("out", of_plane, gw.sinks.noop())
    first = [{"plane": "a", "note": "x"}]
    second = [{"plane": "a", "note": "y"}, {"plane": "b", "note": "z"}]
    played = gw.testing.run(flow, {"notes": [first, second]})
    one, two, other = results
    assert sorted(map(repr, (tuple(r.values()) for r in played.rows("out").to_pylist()))) == sorted(
        map(repr, [("a", one, 1), ("a", one, -1), ("a", two, 1), ("b", other, 1)])
    )


def test_a_sink_cannot_replace_rows_by_keys_of_which_there_are_two() -> None:
    from tests.support.epoch_rows import context

    from godwit.sinks.rows import upsert_keys

    operator = ComputeOperator(
        name="o", keys=KEYS, inputs=INPUTS, aggregates={"n": gw.count()}, mode="changes"
    )
    assert operator.unique_keys == ()
    with pytest.raises(SinkError, match="no columns identify its rows"):
        upsert_keys(context(unique_keys=operator.unique_keys), None)


def test_the_column_of_the_change_is_taken_and_the_way_of_output_is_one_of_three() -> None:
    keyed = gw.Flow("f").source("s", gw.testing.stream("k string, v double")).key_by("k")
    with pytest.raises(InvalidFlowError, match="'change'"):
        lane(change=gw.count())
    with pytest.raises(InvalidFlowError, match=r"'complete' \(all keys\) or 'changes'"):
        keyed.compute(n=gw.count(), output="retract")  # type: ignore[arg-type]
