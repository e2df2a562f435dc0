"""A stream that always has rows for the next epoch, on executors in processes of their own.

A row takes a set time in which its lane waits and computes nothing, so that four executors with two
lanes each can be shown on two cores.  The feed keeps two epochs ahead and no more: what comes in
depends on the time at which it comes in, and how many rows a second do is the throughput.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.cloudpickle import cloudpickle

import godwit as gw
from godwit.engine.lane.executor import current_executor
from godwit.model import events
from godwit.ops.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from godwit.columns.python_values import KeyRows

__all__ = ["Epoch", "Fed", "Setup", "fed_stream"]

_AHEAD = 2
_ROW_MS = 1.0  # time that the function takes for a row
_SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Stream and cluster of a measurement.

    Attributes
    ----------
    executors, lanes
        Executors, and lanes of each.
    keys, zipf
        How many keys, and how unevenly rows are spread over them.
    shuffled_every_s
        How often keys change their share of the rows; ``None``: never.
    epoch_rows
        Rows of an epoch, each of a millisecond.
    key_groups
        Of the operator.
    """

    executors: int = 4
    lanes: int = 2
    keys: int = 10_000
    zipf: float = 0.0
    shuffled_every_s: float | None = None
    epoch_rows: int = 8000
    key_groups: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A committed epoch: its number, when it was done (seconds), how long it took, its rows."""

    number: int
    at_s: float
    took_s: float
    rows: int


@dataclass(slots=True, kw_only=True)
class Fed:
    """A query that is being fed; what it has told so far.

    Attributes
    ----------
    query
        The query.
    work_dir
        Its directory; see `make_slow`.
    factors
        Shape ``(keys,)``: by what the share of each key is multiplied; ``None``: by nothing.
    """

    query: gw.types.Query
    work_dir: Path
    setup: Setup
    rng: np.random.Generator
    epochs: list[Epoch] = field(default_factory=list)
    told: list[events.Event] = field(default_factory=list)
    put: int = 0
    began_s: float = field(default_factory=time.monotonic)
    factors: npt.NDArray[np.float64] | None = None

    def hear(self, event: events.Event) -> None:
        """Take note of an event."""
        self.told.append(event)
        if isinstance(event, events.EpochCommitted) and event.rows_in:
            self.epochs.append(
                Epoch(
                    number=event.epoch,
                    at_s=event.at_s,
                    took_s=event.duration_ms / 1e3,
                    rows=event.rows_in,
                )
            )

    def feed_until(self, holds: Callable[[], object], timeout_s: float) -> bool:
        """Feed rows until something holds, or the time is over; return whether it holds."""
        deadline = time.monotonic() + timeout_s
        while not (done := holds()) and time.monotonic() < deadline:
            if (failure := self.query.exception()) is not None:
                raise failure
            while self.put < len(self.epochs) + _AHEAD:
                self._put()
            time.sleep(0.02)
        return bool(done)

    def feed(self, seconds: float) -> None:
        """Feed rows for some time."""
        self.feed_until(lambda: False, seconds)

    def make_slow(self, executor: str, times: float) -> None:
        """Make an executor slower."""
        new = self.work_dir / "slow.new"
        new.write_text(f"{executor} {times}")
        new.replace(self.work_dir / "slow")

    def heard(self, kind: type[events.Event]) -> list[Any]:
        """Events of a kind."""
        return [event for event in self.told if isinstance(event, kind)]

    def _put(self) -> None:
        setup = self.setup
        keys = self._shares().searchsorted(self.rng.random(setup.epoch_rows))
        keys = keys.clip(max=setup.keys - 1)
        values = np.arange(self.put * setup.epoch_rows, (self.put + 1) * setup.epoch_rows)
        hidden = self.work_dir / "in" / f"_{self.put}"
        pq.write_table(pa.table([keys.astype(np.int32), values], schema=_SCHEMA), hidden)
        os.utime(hidden, (1.6e9 + self.put,) * 2)  # Spark orders files by their age
        hidden.rename(hidden.with_name(f"{self.put:06d}.parquet"))
        self.put += 1

    def _shares(self) -> npt.NDArray[np.float64]:
        """Shape ``(keys,)``: the keys' shares of the rows now, added up."""
        setup = self.setup
        every_s = setup.shuffled_every_s
        turn = 0 if every_s is None else int((time.monotonic() - self.began_s) / every_s)
        rank = np.random.default_rng(turn).permutation(setup.keys) + 1
        weights = rank.astype(np.float64) ** -setup.zipf
        if self.factors is not None:
            weights *= self.factors
        return np.cumsum(weights / weights.sum())


@contextmanager
def fed_stream(setup: Setup, control: gw.Control | None) -> Iterator[Fed]:
    """Start a stream on a cluster of its own; nothing of it is left afterwards."""
    work = Path(tempfile.mkdtemp(prefix="godwit-control-"))
    try:
        with LocalCluster(
            setup.executors, setup.lanes, memory="512m", work_dir=work / "cluster"
        ) as cluster:
            spark = cluster.session("control", {"spark.sql.shuffle.partitions": "2"})
            spark.sparkContext.setLogLevel("OFF")
            # executors do not have this file
            cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
            (work / "in").mkdir()
            flow = gw.Flow("control", num_key_groups=setup.key_groups)
            reader = spark.readStream.schema("k int, v long").option("maxFilesPerTrigger", 1)
            totals = flow.source("rows", reader.parquet(str(work / "in"))).key_by("k")
            counted = totals.process(
                partial(slow_rows, str(work / "slow")),
                state=list,
                output="k int, n long, total long",
                name="totals",
            )
            flow.sink("nothing", counted, gw.sinks.noop())
            query = flow.start(
                checkpoint=work / "checkpoint",
                executors=setup.executors,
                sizing=gw.Sizing(executors_timeout_s=180.0),
                control=control,
            )
            fed = Fed(query=query, work_dir=work, setup=setup, rng=np.random.default_rng(1))
            query.add_listener(fed.hear)
            try:
                yield fed
            finally:
                query.stop()
    finally:
        shutil.rmtree(work, ignore_errors=True)


def slow_rows(
    slow_file: str, key: tuple[int], rows: KeyRows, state: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Count and sum a key's rows, and spend a set time on each; a function for ``process``.

    `slow_file`: file that names the executor that is slow, if any, and its factor. `key`, `rows`,
    `state`: as of any function for ``process``.
    """
    time.sleep(len(rows) * _ROW_MS / 1e3 * _slowdown(slow_file))
    n, total = state or (0, 0)
    n, total = n + len(rows), total + sum(rows.column("v"))
    state[:] = [n, total]
    yield key[0], n, total


_looked: dict[str, tuple[float, float]] = {}
_LOOK_S = 0.2


def _slowdown(slow_file: str) -> float:
    """Return the slow-down factor of this executor, read from a file every now and then."""
    looked_s, factor = _looked.get(slow_file, (0.0, 1.0))
    now_s = time.monotonic()
    if now_s - looked_s >= _LOOK_S:
        try:
            name, slowdown = Path(slow_file).read_text().split()
        except FileNotFoundError:
            name, slowdown = "", "1"
        factor = float(slowdown) if name == current_executor("") else 1.0
        _looked[slow_file] = (now_s, factor)
    return factor
