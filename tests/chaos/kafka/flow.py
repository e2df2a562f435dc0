"""The flow of a history, and how its driver dies at a step.

Rows of a key are numbered in the order of their offsets, so a function that meets a lower number
than before has proof of a row doubled or out of order.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import godwit as gw
from godwit.connect.kafka.sink import KafkaSink
from godwit.engine import outputs
from godwit.engine.loop import EpochLoop
from godwit.sinks.sink import LANE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from godwit.plan.staging import WrittenFile

__all__ = ["NUM_KEY_GROUPS", "die_at", "kafka_flow"]

NUM_KEY_GROUPS = 8
COLUMNS = "k bigint, n bigint, v bigint, at timestamp"


def numbered(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[int, int, int]]:
    """Emit every row with the number of rows of its key so far."""
    for row in rows:
        if row.n <= seen.get("last", -1):
            msg = f"number {row.n} of {key[0]} came after {seen['last']}"
            raise ValueError(msg)
        seen["last"], seen["rows"] = row.n, seen.get("rows", 0) + 1
        yield key[0], row.n, seen["rows"]


def kafka_flow(told: dict[str, Any]) -> gw.Flow:
    """Build the flow; `told` is the driver's configuration."""
    flow = gw.Flow("campaign", num_key_groups=NUM_KEY_GROUPS)
    keyed = flow.source("rows", _source(told), event_time="at", slack="1 day").key_by("k")
    streams: dict[str, Callable[[], Any]] = {
        "totals": lambda: keyed.compute(
            name="totals", n=gw.count(), total=gw.sum("v"), newest=gw.last("n")
        ),
        "rows": lambda: keyed.process(
            numbered, name="rows", state=dict, output="k bigint, n bigint, rows bigint"
        ),
        "windows": lambda: keyed.window(gw.tumbling("1 hour"), name="windows").compute(
            n=gw.count(), total=gw.sum("v")
        ),
    }
    for kind, target in told["outputs"].items():
        flow.sink(kind, streams[kind](), _sink(told, kind, target))
    return flow


def _source(told: dict[str, Any]) -> Any:
    options = {
        "max_rows_per_epoch": told["limit"],
        "on_bad": "divert",
        "rejects": _sink(told, "rejects", told["rejects"]),
    }
    if not told["topic"]:
        return gw.sources.json(Path(told["directory"]) / "in", schema=COLUMNS, **options)
    return gw.sources.kafka(
        told["servers"],
        told["topic"],
        value="json",
        schema=COLUMNS,
        include=["timestamp"],
        group=told["group"],
        **options,
    )


def _sink(told: dict[str, Any], name: str, target: str) -> Any:
    place = Path(told["directory"]) / "out" / name
    lane_bytes = 0 if told["lane_files"] else LANE_BYTES
    match target:
        case "kafka":
            key = None if name == "rejects" else "k"
            return gw.sinks.kafka(told["servers"], told["targets"][name], key=key)
        case "parquet":
            return gw.sinks.parquet(place, lane_bytes=lane_bytes)
        case "delta":
            return gw.sinks.delta(place, lane_bytes=lane_bytes)
        case _:
            return gw.sinks.postgres(told["dsn"], told["targets"][name])


def die_at(told: dict[str, Any], die: Callable[[], None]) -> None:
    """Arrange for the death of this process as `told` says: at a step's n-th time.

    Beside the steps of the loop there are ``"answered"`` (one sink has the epoch, others may not),
    ``"delivering"`` (a sink has some of an epoch's rows, or knows its files) and ``"commit"``
    (before a transaction of Kafka is committed).  Whoever dies there leaves a file that says so.
    """
    step, left = told["step"], [told["epoch"]]

    def reached() -> None:
        left[0] -= 1
        if left[0] < 0:
            (Path(told["directory"]) / f"died-{told['number']}").write_text(step)
            die()

    def at_step(done: str, _epoch: int) -> None:
        if done == step:
            reached()

    deliver, commit = outputs._deliver, KafkaSink._commit_transaction
    batches, files = outputs.StagedOutput.batches, outputs.StagedOutput.files

    def delivered(*args: Any) -> None:
        deliver(*args)
        reached()

    def half(output: outputs.StagedOutput) -> Iterator[pa.RecordBatch]:
        for batch in batches(output):
            yield batch.slice(0, (batch.num_rows + 1) // 2)
            reached()
            yield batch.slice((batch.num_rows + 1) // 2)

    def listed(output: outputs.StagedOutput) -> Sequence[WrittenFile]:
        written = files(output)
        if written:
            reached()
        return written

    def committing(*args: Any) -> None:
        reached()
        commit(*args)

    match step:
        case "answered":
            _replace(outputs, "_deliver", delivered)
        case "delivering":
            _replace(outputs.StagedOutput, "batches", half)
            _replace(outputs.StagedOutput, "files", listed)
        case "commit":
            _replace(KafkaSink, "_commit_transaction", committing)
        case _:
            _replace(EpochLoop, "at_step", staticmethod(at_step))


def _replace(owner: Any, name: str, value: Any) -> None:
    """Put something else in an attribute's place, for the rest of this process's life."""
    assert hasattr(owner, name), f"{owner.__name__} has no {name}: nobody would die there"
    setattr(owner, name, value)


def kill_this() -> None:
    """Die as by a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
