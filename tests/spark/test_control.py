"""A stream with a controller balances itself, and its rows are those of a stream without."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.runtime.dispatcher import past_decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.placement import Problem

pytestmark = pytest.mark.spark

KEY_GROUPS = 16
ROUNDS = 60


def numbered(
    key: tuple[int], rows: gw.types.KeyRows, seen: dict[str, int]
) -> Iterator[tuple[int, int, int]]:
    """Number the rows of a key in the order in which they come; a millisecond each."""
    for row in rows:
        time.sleep(0.001)
        seen["rows"] = seen.get("rows", 0) + 1
        yield key[0], row.number, seen["rows"]


class Stream:
    """Rows of 200 keys, a millisecond each, all of them on one executor at first."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.inbox = Inbox(spark=spark, directory=directory / "in", columns="k int, number long")
        self.put = 0
        self.sinks: list[Any] = []

    def start(self, control: gw.Control | None) -> gw.types.Query:
        flow = gw.Flow("numbered", num_key_groups=KEY_GROUPS)
        by_key = flow.source("numbers", self.inbox.stream()).key_by("k")
        made = by_key.process(
            numbered, state=dict, output="k int, number long, nth long", name="numbered"
        )
        self.sinks.append(gw.sinks.memory())
        flow.sink("out", made, self.sinks[-1])
        executors = [f"local-{n}" for n in range(self.spark.sparkContext.defaultParallelism)]
        lopsided = gw.migration.even_assignment(KEY_GROUPS, executors, [1] * len(executors)).moved(
            dict.fromkeys(range(KEY_GROUPS), "local-0")
        )
        return flow.start(
            checkpoint=self.directory / "ck",
            name=self.directory.name,
            control=control,
            sizing=gw.Sizing(assignments={"numbered": lopsided}),
        )

    def step(self, query: gw.types.Query) -> None:
        self.inbox.put([(k, self.put) for k in range(200)])
        self.put += 1
        query.processAllAvailable()

    def until(self, query: gw.types.Query, condition: Callable[[], object], what: str) -> None:
        for _ in range(ROUNDS):
            if condition():
                return
            self.step(query)
        pytest.fail(f"{what}: {[e.describe() for e in query.events[-40:]]}")

    def check(self) -> None:
        """Every row was processed once, in its order."""
        epochs: dict[int, Any] = {}
        for sink in self.sinks:  # a run that resumes delivers the last epoch again
            epochs |= sink.epochs
        seen = defaultdict(list)
        for table in epochs.values():
            for key, number, nth in rows_of(table):
                seen[key].append((number, nth))
        expected = [(n, n + 1) for n in range(self.put)]
        assert {key: sorted(rows) for key, rows in seen.items()} == dict.fromkeys(
            range(200), expected
        )


def told(query: gw.types.Query, *kinds: type[events.Event]) -> list[Any]:
    return [event for event in query.events if isinstance(event, kinds)]


def spread(query: gw.types.Query) -> int:
    """Key groups on the executor that has most."""
    (assignment,) = query.placement.assignments.values()
    return int(np.bincount(assignment.executor_of).max())


def test_a_lopsided_stream_is_balanced_by_itself_and_its_rows_are_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    query = stream.start(gw.Control(period="0.5 seconds", cadence=gw.control.Cadence(min_epochs=2)))
    assert spread(query) == KEY_GROUPS
    stream.until(query, lambda: spread(query) < KEY_GROUPS * 0.75, "nothing moved")
    stream.until(query, lambda: told(query, events.MigrationFinished), "it did not end")
    assert told(query, events.RebalancingStarted)[0].distance_before > 0.5
    assert told(query, events.LoadMeasured)[0].bottleneck == "time"
    assert query.status["control"]["planner"] == "milp"
    query.stop()
    stream.check()


def test_a_controller_that_restarts_reads_the_journal_and_leaves_alone_what_was_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    query = stream.start(
        gw.Control(period="0.5 seconds", cadence=gw.control.Cadence(min_epochs=2, respect="1 hour"))
    )
    stream.step(query)
    query.migrate({0: "local-1"})
    stream.until(query, lambda: told(query, events.ManualOverrideRespected), "nobody noticed")
    query.stop()
    past = past_decisions(CheckpointStorage.open(str(tmp_path / "ck")))
    assert [e.what for e in past if isinstance(e, events.ManualOverrideRespected)] == [
        "migration of numbered"
    ]

    query = stream.start(
        gw.Control(period="0.5 seconds", cadence=gw.control.Cadence(min_epochs=2, respect="1 hour"))
    )
    stream.until(query, lambda: len(told(query, events.LoadMeasured)) > 2, "nothing measured")
    assert "migration of numbered" in query.status["control"]["leftAlone"]
    assert not told(query, events.RebalancingStarted)
    query.stop()
    stream.check()


def test_a_planner_that_never_returns_is_given_up_and_epochs_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    def thinks(problem: Problem) -> np.ndarray:
        time.sleep(3.0)
        return problem.current

    stream = Stream(spark, tmp_path)
    control = gw.Control(
        planner=thinks,
        period="0.3 seconds",
        cadence=gw.control.Cadence(min_epochs=1),
        search=gw.control.Search(time_limit="0.2 seconds"),
    )
    query = stream.start(control)
    stream.until(query, lambda: told(query, events.PlannerFailed), "it was not given up")
    assert told(query, events.PlannerFailed)[0].reason == "it has not returned after 0.2 s"
    before = query.status["committedEpoch"]
    stream.step(query)
    assert query.status["committedEpoch"] > before
    query.stop()
    stream.check()


def test_in_one_process_no_executor_is_drained_for_a_number_that_cannot_be_had(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    query = stream.start(
        gw.Control(
            scaling=gw.control.fixed(1),
            period="0.5 seconds",
            cadence=gw.control.Cadence(min_epochs=2),
        )
    )
    stream.until(query, lambda: len(told(query, events.LoadMeasured)) > 4, "nothing measured")
    (refused,) = told(query, events.ScalingRefused)
    assert (refused.before, refused.wanted) == (2, 1)
    assert "local[2] is one process" in refused.reason
    assert not told(query, events.ScaledIn, events.ExecutorDraining)
    query.stop()
    stream.check()


def test_what_is_no_control_is_refused_before_anything_is_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    with pytest.raises(InvalidFlowError, match="option control of start is of type str"):
        stream.start("milp")  # type: ignore[arg-type]  # what is tested
    assert not (tmp_path / "ck").exists()
