"""A program that lives a history, round by round, until it is done or dies.

Called with the path of a JSON file: ``directory``, ``history``.  Which round is next stands in
``directory/next``; it is written before a round begins, so a round is lived once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from tests.chaos.campaign.histories import History, Operator, shape_of
from tests.chaos.campaign.oracle import rows_of_file
from tests.chaos.programs.driver import die, session

import godwit as gw
from godwit.checkpoint import partial_copies
from godwit.engine.loop import EpochLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

PATIENCE_S = 60.0
COLUMNS = "k int, shard int, number long, v long"
_SCHEMA = pa.schema(
    [("k", pa.int32()), ("shard", pa.int32()), ("number", pa.int64()), ("v", pa.int64())]
)
_AGGREGATES: dict[str, Callable[[], Any]] = {
    "count": gw.count,
    "sum": lambda: gw.sum("v"),
    "min": lambda: gw.min("v"),
    "max": lambda: gw.max("v"),
    "mean": lambda: gw.mean("v"),
    "last": lambda: gw.last("number"),
}


class PlannedFailureError(Exception):
    """Failure that a round meets on purpose."""


def campaign_flow(
    spark: SparkSession, directory: Path, history: History, generation: int
) -> gw.Flow:
    """Build the flow of a generation."""
    acts = directory / "acts"

    def witness(key: tuple[int], rows: Any, _state: dict[int, int]) -> Iterable[tuple[int, ...]]:
        with suppress(FileNotFoundError):
            (acts / "die").unlink()  # whoever removes it does what it says
            os.kill(os.getpid(), signal.SIGKILL)
        for row in rows:
            yield key[0], row.number, generation

    def insist(key: tuple[int], rows: Any, due: dict[int, int]) -> Iterable[tuple[int, int]]:
        for row in rows:
            if row.number != due.get(row.k, row.number):
                msg = f"number {row.number} of {row.k} came where {due[row.k]} was due"
                raise ValueError(msg)
            due[row.k] = row.number + 1
            yield key[0], row.v

    flow = gw.Flow("campaign", num_key_groups=history.num_key_groups)
    rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    source = flow.source("rows", rows.parquet(str(directory / "in")))
    seen = source.key_by("k").process(
        witness, state=dict[int, int], output="k int, number long, g int", name="witness"
    )
    flow.sink("witness", seen, gw.sinks.parquet(directory / "out" / "witness"))
    for operator in history.generations[generation]:
        stream = _stream(source, operator, insist)
        target = directory / "out" / operator.uid / shape_of(operator)
        flow.sink(f"sink_{operator.uid}", stream, gw.sinks.parquet(target, lane_bytes=0))
    return flow


def _stream(source: Any, operator: Operator, insist: Any) -> Any:
    # One that is new may come with the change that removes another.
    name = gw.types.Identity(operator.name, formerly=operator.formerly or None, starts_empty=True)
    keyed = source.key_by(operator.by)
    if operator.kind == "process":
        return keyed.process(
            insist, state=dict[int, int], output=f"{operator.by} int, v long", name=name
        )
    results = {result: _AGGREGATES[aggregate]() for result, aggregate in operator.results}
    return keyed.compute(results, name=name)


def put(directory: Path, history: History, number: int) -> None:
    """Write one input file, into place in one step."""
    rows = rows_of_file(history.seed, number)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    hidden = directory / "in" / f"_{number:06d}"
    # Of equal size, all of them: Spark reads the larger ones of a micro-batch first, and it may
    # have two if a query stopped between the source's log and the log of offsets.
    pq.write_table(table, hidden, compression="none", use_dictionary=False, write_statistics=False)
    os.utime(hidden, (1_600_000_000 + number, 1_600_000_000 + number))
    hidden.rename(directory / "in" / f"{number:06d}.parquet")


class Round:
    """One round of a history."""

    def __init__(self, spark: SparkSession, directory: Path, history: History, number: int) -> None:
        self.spark, self.directory, self.history = spark, directory, history
        self.told = history.rounds[number]
        self.rng = random.Random(history.seed * 1000 + number)

    def live(self) -> None:
        """Start, do the deed, and end."""
        deed = self.told["deed"]
        if deed == "die":
            (self.directory / "acts" / "die").touch()
        self._arrange_for_steps()
        flow = campaign_flow(self.spark, self.directory, self.history, self.told["generation"])
        try:
            query: gw.types.Query = flow.start(checkpoint=self.directory / "ck")
            ending = threading.Thread(target=self._end, args=(query,), daemon=True)
            ending.start()
            self._migrate(query)
            if deed in ("finish", "die"):
                query.processAllAvailable()
                query.stop()
            ending.join(PATIENCE_S)
            assert query.awaitTermination(int(PATIENCE_S)), f"it continues: {query.status}"
        except Exception as error:
            if deed != "fail" or "on purpose" not in str(error):
                raise
        finally:
            (self.directory / "acts" / "die").unlink(missing_ok=True)

    def _arrange_for_steps(self) -> None:
        """Let the query fail, or this process die, at a step of the n-th epoch of this round."""
        begun: list[int] = []

        def at_step(step: str, _epoch: int) -> None:
            if step == "planned":
                begun.append(1)
            if step == self.told.get("step") and len(begun) > self.told["epoch"]:
                if self.told["deed"] == "kill at":
                    die(self.spark)
                msg = "failed on purpose"
                raise PlannedFailureError(msg)

        setattr(EpochLoop, "at_step", staticmethod(at_step))  # noqa: B010  mypy takes no assignment

    def _end(self, query: gw.types.Query) -> None:
        """End the query in the way that the round says."""
        match self.told["deed"]:
            case "stop":
                time.sleep(self.told["after_s"])
                query.stop()
            case "stop twice":
                time.sleep(self.told["after_s"])
                other = threading.Thread(target=query.stop)
                other.start()
                query.stop()
                other.join(PATIENCE_S)
            case "kill":
                time.sleep(self.told["after_s"])
                die(self.spark)
            case "stop in listener":
                self._stop_in_listener(query)
            case "fail" | "kill at":
                # There may be fewer epochs than it takes.
                with suppress(gw.errors.GodwitError):
                    query.processAllAvailable()
                    query.stop()

    def _stop_in_listener(self, query: gw.types.Query) -> None:
        heard: list[object] = []

        def listen(event: object) -> None:
            heard.append(event)
            if len(heard) == self.told["event"]:
                query.stop()

        query.add_listener(listen)
        with suppress(gw.errors.GodwitError):
            query.processAllAvailable()
        query.stop()

    def _migrate(self, query: gw.types.Query) -> None:
        """Ask for migrations at random; a query that ends meanwhile refuses them."""
        for _ in range(self.told["migrations"]):
            time.sleep(self.rng.uniform(0.0, 0.6))
            with suppress(gw.errors.GodwitError):
                component = self.rng.choice(sorted(query.placement.assignments))
                moving = range(self.history.num_key_groups)
                chosen = self.rng.sample(moving, self.rng.randint(1, len(moving)))
                query.migrate(
                    dict.fromkeys(chosen, self.rng.choice(query.executors)),
                    component=component,
                    strategy=self.rng.choice(["live", "disruptive", "on_demand", "stop_the_world"]),
                    bounds=gw.migration.Bounds(max_moves=self.rng.randint(1, 4)),
                )


def main(path: str) -> None:
    """Live what is left of the history."""
    config: dict[str, Any] = json.loads(Path(path).read_text())
    directory = Path(config["directory"])
    history = msgspec.convert(config["history"], History)
    if history.seed % 2:  # any state is fetched on demand, after a start, a loss or a migration
        partial_copies.FROM_BYTES = 0
    following = directory / "next"
    for name in ("in", "out", "acts"):
        (directory / name).mkdir(exist_ok=True)
    first = int(following.read_text()) if following.exists() else 0
    if first >= len(history.rounds):
        return
    spark = session(directory)
    spark.sparkContext.setLogLevel("OFF")
    for number in range(first, len(history.rounds)):
        following.write_text(str(number + 1))
        told = history.rounds[number]
        there = sum(earlier["files"] for earlier in history.rounds[:number])
        for file in range(there, there + told["files"]):
            put(directory, history, file)
        print(time.strftime("%H:%M:%S"), number, told, flush=True)  # noqa: T201  this program's log
        Round(spark, directory, history, number).live()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
