"""Spark's logs and progress say when the rows of a micro-batch arrived."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, cast

from godwit.checkpoint.records import BatchRef
from godwit.checkpoint.spark_log import OffsetLayout, Reading
from godwit.spark.micro_batch_epochs import MicroBatchLooks

_NOW_MS = time.time_ns() // 10**6


def _layout(*names: str) -> OffsetLayout:
    return OffsetLayout(
        readings=tuple((Reading(source=name),) for name in names), lines=tuple(range(len(names)))
    )


def _batch(number: int, at_ms: int, sources: dict[str, bytes] | None = None) -> BatchRef:
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms})
    return BatchRef(
        number=number, digest="d", offsets=f"v1\n{head}\n{{}}".encode(), sources=sources or {}
    )


def _query(number: int, **offsets: object) -> Any:
    source = {f"{name}Offset": offset for name, offset in offsets.items()}
    return cast("Any", SimpleNamespace(lastProgress={"batchId": number, "sources": [source]}))


def test_rows_of_files_arrive_when_their_files_were_written() -> None:
    looks = MicroBatchLooks(_layout("orders", "clicks"), None)
    log = b"v1\n" + b"\n".join(
        json.dumps({"path": f"file:///{n}", "timestamp": n, "batchId": 4}).encode() for n in (7, 9)
    )
    look = looks.look(_batch(4, _NOW_MS, {"sources/1/4": log}), None)
    assert look.at_us == 1000 * _NOW_MS
    assert look.arrived_us == {"clicks": [7000, 9000]}


def test_what_a_source_held_back_is_known_at_the_next_look() -> None:
    looks = MicroBatchLooks(_layout("orders"), None)
    assert looks.look(_batch(0, _NOW_MS), _query(0)).before == {}
    looks.committed(50)  # of 100 offsets: maps have dropped every other row
    query = _query(0, start={"t": {"0": 0}}, end={"t": {"0": 100}}, latest={"t": {"0": 400}})
    look = looks.look(_batch(1, _NOW_MS + 900), query)
    assert look.before == {"orders": [(1000 * _NOW_MS, 150.0)]}
    # Progress of another micro-batch says nothing of the last.
    assert looks.look(_batch(2, _NOW_MS + 1800), query).before == {}


def test_a_long_gap_between_micro_batches_was_one_without_rows() -> None:
    trigger = {"processingTime": "2 seconds"}
    looks = MicroBatchLooks(_layout("orders"), trigger, now_us=lambda: 1000 * (_NOW_MS + 700))
    looks.look(_batch(0, _NOW_MS), None)
    looks.committed(10)
    soon, late = _NOW_MS + 2_000, _NOW_MS + 60_000
    assert looks.look(_batch(1, soon), None).nothing_us == {}
    last_us = 1000 * (late - 2_000)
    assert looks.look(_batch(2, late), None).nothing_us == {"orders": last_us}


def test_logs_of_another_form_cost_the_figure_alone() -> None:
    looks = MicroBatchLooks(_layout("orders"), None)
    before_us = time.time_ns() // 1000
    odd = BatchRef(number=0, digest="d", offsets=b"v9", sources={"sources/9/0": b"v1\n[]"})
    look = looks.look(odd, None)
    assert look.at_us >= before_us
    assert look.arrived_us == {}
