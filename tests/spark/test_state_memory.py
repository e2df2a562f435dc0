"""A query whose state has a bound on its memory gives what a query without one gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.spark.streams import Inbox, by_epoch, drain

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.model import events
from godwit.model.errors import EpochFailedError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_KEYS = 16_000
_EPOCHS = 4
_BOUND = 300 * 1024  # bytes on an executor: a little more than an epoch needs


def generated() -> list[list[tuple[int, int]]]:
    """Epochs of rows: new keys, and some that came before."""
    rng, part = np.random.default_rng(1), _KEYS // _EPOCHS
    return [
        [(k, epoch) for k in (*range(epoch * part, (epoch + 1) * part), *drawn.tolist())]
        for epoch, drawn in enumerate(rng.integers(0, _KEYS, (_EPOCHS, 300)))
    ]


class Totals:
    """A flow with an aggregate, over its own files."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.inbox = Inbox(spark=spark, directory=directory / "in", columns="k long, v long")
        self.checkpoint = directory / "ck"
        self.rows: dict[int, Any] = {}

    def drain(self, **lanes: Any) -> gw.types.Query:
        """Run over the files that are new; the rows of all runs are in `rows`."""
        flow, sink = gw.Flow("bounded", num_key_groups=8), gw.sinks.memory()
        keyed = flow.source("rows", self.inbox.stream()).key_by("k")
        flow.sink("totals", keyed.compute(n=gw.count(), v=gw.sum("v"), name="totals"), sink)
        try:
            return drain(flow, self.checkpoint, lanes=gw.Lanes(**lanes))
        finally:
            for epoch, rows in by_epoch(sink.epochs).items():
                assert self.rows.setdefault(epoch, rows) == rows


def test_rows_are_the_same_with_a_bound_that_evicts_and_a_crash(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, bounded = Totals(spark, tmp_path / "free"), Totals(spark, tmp_path / "bounded")
    for totals in (free, bounded):
        totals.inbox.put(*generated())
    free.drain()
    commit = CommitLog.commit

    def crash(log: CommitLog, record: Any, *args: Any, **options: Any) -> Any:
        if record.epoch == _EPOCHS - 2:
            raise KeyError("the driver dies before the commit")
        return commit(log, record, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "commit", crash)
        with pytest.raises(EpochFailedError, match="dies before the commit"):
            bounded.drain(state_memory=_BOUND)
    query = bounded.drain(state_memory=_BOUND)
    assert bounded.rows == free.rows
    progress = query.recentProgress
    assert [p["evictedKeyGroups"] > 0 for p in progress] == [False, True]  # tables were empty first
    assert max(p["stateTableBytes"] for p in progress) <= _BOUND * len(query.executors)
    assert sum(p["fetchedKeys"] for p in progress) > 0
    assert any(isinstance(event, events.StateEvicted) for event in query.events)
