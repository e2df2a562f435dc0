"""A program that lives the rounds of `timed`, one after another, until it is done or dies.

Called with the path of a JSON file: ``directory``, ``seed``, ``rounds``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.chaos.campaign import timed
from tests.chaos.programs.driver import die, session

import godwit as gw
from godwit.cli.main import main as godwit
from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

PATIENCE_S = 100
GROUPS = 8
_TYPES = {"k": "int", "ts": "timestamp", "number": "long", "v": "long"}
_SCHEMA = pa.schema(
    [
        ("k", pa.int32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("number", pa.int64()),
        ("v", pa.int64()),
    ]
)


def so_far(key: tuple[int], rows: Any, state: dict[str, int]) -> Iterable[tuple[int, int, int]]:
    """Emit each row with the sum up to it."""
    for row in rows:
        state["sum"] = state.get("sum", 0) + row.v
        yield key[0], row.number, state["sum"]


def timed_flow(spark: SparkSession, directory: Path, order: int) -> gw.Flow:
    """Build the flow, with everything in the order of a round."""
    flow = gw.Flow("timed", num_key_groups=GROUPS)
    columns = ", ".join(f"{c} {_TYPES[c]}" for c in timed.written_down([*_TYPES], order))

    def source(name: str) -> Any:
        rows = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
        return flow.source(
            name,
            rows.parquet(str(directory / name)),
            event_time="ts",
            slack=f"{timed.SLACK_S} seconds",
        )

    def results() -> dict[str, Any]:
        made = {"n": gw.count(), "s": gw.sum("v")}
        return {name: made[name] for name in timed.written_down([*made], order)}

    left, right = source("left"), source("right")
    keyed = left.key_by("k")
    between = (f"{timed.BEFORE_S} seconds", f"{timed.AFTER_S} seconds")
    made = {
        "totals": keyed.compute(name="totals", **results()),
        "windows": keyed.window(gw.tumbling(f"{timed.WINDOW_S} seconds"), name="windows").compute(
            **results()
        ),
        "sessions": keyed.window(gw.session(f"{timed.GAP_S} seconds"), name="sessions").compute(
            **results()
        ),
        "pairs": keyed.join(right.key_by("k"), between=between, suffix="_right", name="pairs"),
        "seen": keyed.process(
            so_far, state=dict[str, int], output="k int, number long, so_far long", name="seen"
        ),
    }
    for name in timed.written_down([*made], order):
        target = directory / "out" / name
        delta = name in ("sessions", "pairs")
        flow.sink(name, made[name], (gw.sinks.delta if delta else gw.sinks.parquet)(target))
    return flow


def put(directory: Path, seed: int, source: str, number: int) -> None:
    """Write one input file, into place in one step."""
    hidden, place = directory / "hidden", directory / source / f"{number:06d}.parquet"
    rows = timed.rows_of_file(seed, source, number)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    # Of equal size, all of them: of two in a micro-batch, Spark reads the larger one first.
    pq.write_table(table, hidden, compression="none", use_dictionary=False, write_statistics=False)
    stamp = 1_600_000_000 + number
    os.utime(hidden, (stamp, stamp))
    hidden.rename(place)


class Round:
    """One round of a life."""

    def __init__(self, spark: SparkSession, directory: Path, told: dict[str, Any]) -> None:
        self.spark, self.directory, self.told = spark, directory, told
        self.rng = random.Random(told["order"])

    def live(self) -> None:
        """Start, do the deed, and end."""
        told, checkpoint = self.told, self.directory / "ck"
        if told["restore"] and (self.directory / "backup").exists():
            self._restore()
        if told["backup"] == "before":
            self._backup()
        self.spark.conf.set("spark.sql.session.timeZone", told["zone"])
        once = told["deed"] in ("available", "held", "close")
        options: dict[str, Any] = {
            "checkpoint": checkpoint,
            "trigger": {"availableNow": True} if once else None,
            "close_at_end": told["deed"] == "close",
        }
        query = self._start(options)
        helper = threading.Thread(target=self._meanwhile, args=(query,), daemon=True)
        helper.start()
        self._end(query)
        helper.join(PATIENCE_S)
        assert query.awaitTermination(PATIENCE_S), f"it continues: {query.status}"
        for event in query.events:
            if isinstance(event, (events.RowsLeftOut,)):
                problem = f"rows were left out: {event}"
                raise AssertionError(problem)  # noqa: TRY004  no wrong type

    def _start(self, options: dict[str, Any]) -> gw.types.Query:
        try:
            flow = timed_flow(self.spark, self.directory, self.told["order"])
            query = flow.start(**options)
        except gw.errors.SinkError as error:
            if not (self.directory / "restored").exists():
                raise
            print("  refused, rolled back:", str(error)[:100], flush=True)  # noqa: T201
            flow = timed_flow(self.spark, self.directory, self.told["order"])
            query = flow.start(**options, on_divergence="roll_back")
        (self.directory / "restored").unlink(missing_ok=True)  # from here on, targets go on from it
        return query

    def _backup(self) -> None:
        checkpoint, backup = self.directory / "ck", self.directory / "backup"
        if checkpoint.exists():
            fresh = self.directory / "backup-new"
            shutil.rmtree(fresh, ignore_errors=True)
            done = godwit(["checkpoint", "copy", "--same-query", str(checkpoint), str(fresh)])
            print("  backup:", done, flush=True)  # noqa: T201
            if done == 0:
                shutil.rmtree(backup, ignore_errors=True)
                fresh.rename(backup)

    def _restore(self) -> None:
        checkpoint, backup = self.directory / "ck", self.directory / "backup"
        shutil.rmtree(self.directory / "broken", ignore_errors=True)
        checkpoint.rename(self.directory / "broken")
        assert godwit(["checkpoint", "copy", "--same-query", str(backup), str(checkpoint)]) == 0
        (self.directory / "restored").touch()
        print("  restored", flush=True)  # noqa: T201

    def _meanwhile(self, query: gw.types.Query) -> None:
        """Ask for migrations, and take a backup, while it runs."""
        held = self.told["deed"] == "held"
        for number in range(max(self.told["migrations"], 1 if held else 0)):
            if number or not held:
                time.sleep(self.rng.uniform(0.0, 1.5))
            with suppress(gw.errors.GodwitError):
                component = self.rng.choice(sorted(query.placement.assignments))
                chosen = self.rng.sample(range(GROUPS), self.rng.randint(1, GROUPS))
                query.migrate(
                    dict.fromkeys(chosen, self.rng.choice(query.executors)),
                    component=component,
                    strategy="stop_the_world" if held else "live",
                )
        if self.told["backup"] == "meanwhile":
            self._backup()

    def _end(self, query: gw.types.Query) -> None:
        deed = self.told["deed"]
        if deed == "drain":
            query.processAllAvailable()
            query.stop()
        elif deed in ("available", "held", "close"):
            assert query.awaitTermination(PATIENCE_S), f"it continues: {query.status}"
        else:
            if self.told["wait"] == "drain":
                query.processAllAvailable()
            else:
                time.sleep(self.told["after_s"])
            if deed == "kill":
                die(self.spark)
            elif deed == "handle":
                for handle in self.spark.streams.active:
                    handle.stop()
            else:
                query.stop()


def main(path: str) -> None:
    """Live what is left of the life."""
    config: dict[str, Any] = json.loads(Path(path).read_text())
    directory, rounds = Path(config["directory"]), config["rounds"]
    following = directory / "next"
    for name in ("left", "right", "out"):
        (directory / name).mkdir(exist_ok=True)
    first = int(following.read_text()) if following.exists() else 0
    if first >= len(rounds):
        return
    spark = session(directory)
    spark.sparkContext.setLogLevel("OFF")
    for number in range(first, len(rounds)):
        following.write_text(str(number + 1))
        there = sum(earlier["files"] for earlier in rounds[:number])
        for file in range(there, there + rounds[number]["files"]):
            put(directory, config["seed"], "left", file)
            put(directory, config["seed"], "right", file)
        print(time.strftime("%H:%M:%S"), number, rounds[number], flush=True)  # noqa: T201
        Round(spark, directory, rounds[number]).live()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
