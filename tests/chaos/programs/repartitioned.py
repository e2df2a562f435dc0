"""Other columns place state while executors are killed, on a real cluster of processes.

A play has the source of its rows, ``own`` or ``frames``, whether its lanes are ``resident``, and
the moments of its kills.  It is judged here: numbers per key come in order, each once, and sums are
right.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.programs.cluster import until
from tests.spark.streams import Inbox, rows_of

import godwit as gw
from godwit.checkpoint.epochs import commit_edit
from godwit.spark.platform.executors import live_executors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from godwit.ops.local_cluster import LocalCluster

COLUMNS = "area string, user int, number long"
AREAS, USERS, NUM_KEY_GROUPS = 5, 8, 16
PLACED: tuple[Any, ...] = ("area", "user", None, ["user", "area"])


def in_order(key: Any, rows: Any, state: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Pass on the numbers of a key, which come one after the other."""
    for row in rows:
        due = state.get("next", 0)
        if row.number != due:
            msg = f"number {row.number} of {key} came where {due} was due"
            raise ValueError(msg)
        state["next"] = due + 1
        yield *key, row.number


class Play:
    """One flow on the cluster, whose columns change while executors are killed."""

    def __init__(
        self,
        cluster: LocalCluster,
        spark: SparkSession,
        directory: Path,
        play: dict[str, Any],
        seed: int,
    ) -> None:
        self._cluster, self._spark, self._play = cluster, spark, play
        self._application = spark.sparkContext.applicationId
        self._dice, self._next = random.Random(seed), Counter[tuple[str, int]]()
        self._own = gw.sources.memory(COLUMNS, max_rows_per_epoch=30)
        self._inbox = Inbox(spark=spark, directory=directory / "in", columns=COLUMNS)
        self._passed, self._areas = gw.sinks.memory(), gw.sinks.memory()
        flow = gw.Flow(directory.name, num_key_groups=NUM_KEY_GROUPS)
        rows = flow.source("rows", self._own if play["own"] else self._inbox.stream())
        users = rows.key_by("area", "user").process(
            in_order, state=dict, output=COLUMNS, name="users"
        )
        areas = users.key_by("area").compute(name="areas", rows=gw.count(), most=gw.max("number"))
        flow.sink("passed", users, self._passed)
        flow.sink("areas", areas, self._areas)
        until(self._has_two_executors, "two executors")
        self.query = flow.start(
            checkpoint=directory / "ck",
            executors=2,
            session=spark,
            lanes=gw.Lanes(resident=play["resident"]),
        )

    def _has_two_executors(self) -> bool:
        pids = self._cluster.executor_pids(self._application)
        return len(pids) == 2 and len(live_executors(self._spark.sparkContext)) == 2

    def _put(self) -> None:
        """Add rows of all keys."""
        keys = [(f"area {n % AREAS}", n // AREAS) for n in range(AREAS * USERS)] * 2
        self._dice.shuffle(keys)
        rows = []
        for key in keys:
            rows.append((*key, self._next[key]))
            self._next[key] += 1
        if self._play["own"]:
            self._own.add(rows)
        else:
            self._inbox.put(rows)

    def _kill(self) -> str:
        """Kill the executor that has the first key group of the users."""
        executor: str = self.query.placement.assignments[self._component()].executor(0)
        self._cluster.kill_executor(executor, self._application)
        return executor

    def _component(self) -> str:
        components: dict[str, list[str]] = self.query.status["components"]
        return next(name for name, of in components.items() if "users" in of)

    def run(self) -> list[str]:
        """Change the columns once for each kill; return the executors that were killed."""
        killed = []
        self._process(2)
        for number, moment in enumerate(self._play["moments"]):
            until(self._has_two_executors, "two executors")
            until(lambda: len(self.query.executors) == 2, "the query to know of them")
            change = {"users": PLACED[number % len(PLACED)]}
            self._put()
            if moment == "before":
                killed.append(self._kill())
                self.query.components.repartition(change)
            elif moment in ("record", "recovered"):
                killed.append(self._kill_around_the_record(moment, change))
            elif moment == "after":
                self.query.components.repartition(change)
                killed.append(self._kill())
            else:  # while epochs run, and it is asked for at the same time
                asking = threading.Thread(
                    target=self.query.components.repartition, args=(change,), daemon=True
                )
                asking.start()
                killed.append(self._kill())
                self._put()
                asking.join(300)
                assert not asking.is_alive()
            self._process(2)
        return killed

    def _kill_around_the_record(self, moment: str, change: Any) -> str:
        """Kill an executor before the record of the change is written, or right after."""
        killed: list[str] = []

        def around(*given: Any, **options: Any) -> None:
            if moment == "record":
                killed.append(self._kill())
            commit_edit(*given, **options)
            if moment == "recovered":
                killed.append(self._kill())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("godwit.engine.repartition.commit_edit", around)
            self.query.components.repartition(change)
        (executor,) = killed
        return executor

    def _process(self, epochs: int) -> None:
        for _ in range(epochs):
            self._put()
            self.query.processAllAvailable()

    def judge(self, killed: list[str]) -> dict[str, Any]:
        """Stop, compare what came out, and return what happened."""
        until(lambda: self.query.status["keyGroupsSuspended"] == 0, "everything to run again")
        until(lambda: not {*killed} & {*self.query.executors}, "the loss of those that were killed")
        self._process(1)
        self.query.stop()
        passed = [row for _, table in sorted(self._passed.epochs.items()) for row in rows_of(table)]
        numbers: dict[tuple[str, int], list[int]] = {}
        for area, user, number in passed:
            numbers.setdefault((area, user), []).append(number)
        assert numbers == {key: list(range(count)) for key, count in self._next.items()}
        areas = {
            area: (rows, most)
            for _, table in sorted(self._areas.epochs.items())
            for area, rows, most in rows_of(table)
        }
        assert areas == {
            area: (
                sum(n for (of, _), n in self._next.items() if of == area),
                max(n for (of, _), n in self._next.items() if of == area) - 1,
            )
            for area, _ in self._next
        }
        told = [event.to_dict() for event in self.query.events]
        return {"events": told, "killed": killed}
