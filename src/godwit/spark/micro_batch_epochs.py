"""Epochs of a flow over DataFrames, and over Godwit's own sources beside them, if it has any.

The problem: Spark calls for an epoch when DataFrames have rows, and its own log says which; own
sources have rows at any time, and the commit record alone says how far they were read.

The rule: an epoch takes a micro-batch or none, and of every own source what it has at that moment
or nothing.  The record of an epoch says where both kinds stand after it: the last micro-batch that
is committed, and all positions.  So an epoch of own rows alone repeats the micro-batch of the
record before it.  After a crash Spark offers the same micro-batch again, and own sources are read
again from their positions, perhaps further: the epoch was not committed, so no row was visible.

A source may block for any time, and Spark waits for ever for a thread of its own.  So own sources
are called by one thread of ours (`SourceThread`), and callers stop waiting for it once the query is
stopping.
"""

from __future__ import annotations

import json
import time
from collections import deque
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import msgspec

from godwit.checkpoint.spark_log import update_layout
from godwit.engine.cluster import SourceLook
from godwit.engine.flow_epochs import announce_problems
from godwit.runtime.settings import is_bounded, is_once, known_interval_s
from godwit.runtime.source_figures import SourceProgress, parse_file_log
from godwit.runtime.source_loop import num_tasks
from godwit.runtime.threads import DaemonPool, GateClosedError
from godwit.spark.batch_rows import (
    BatchRows,
    MicroBatches,
    query_of,
    remove_leftovers,
    write_query_id,
)
from godwit.spark.progress import offsets_behind
from godwit.spark.stages.source_rows import SourceRows, arrow_schema, feeds_of
from godwit.spark.stages.stages import EpochRows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef
    from godwit.checkpoint.spark_log import OffsetLayout
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.recovery import Recovery
    from godwit.runtime.run import QueryRun
    from godwit.runtime.threads import EpochGate
    from godwit.spark.stages.source_plans import Program

P = ParamSpec("P")
R = TypeVar("R")
_Planned = TypeVar("_Planned", bound="SourceBatch[Any] | None")

_LOOK_S: Final = 0.05


class MicroBatchRows(BatchRows):
    """Rows of Spark's micro-batches, with the log that says which they are, and of own sources."""

    def __init__(
        self,
        recovery: Recovery,
        log: CommitLog,
        *,
        rows: DataFrame,  # the one streaming DataFrame (`godwit.spark.stages.source_rows`)
        offsets: OffsetLayout,  # whose the offsets are that Spark keeps of it
        trigger: Mapping[str, object] | None,  # when epochs run
    ) -> None:
        super().__init__(recovery, log)
        self._log, self._offsets = log, offsets
        self._batches = MicroBatches(log.storage, offsets.lines)
        self._looks = MicroBatchLooks(offsets, trigger)
        self._schema = arrow_schema(rows)
        self._rows = SourceRows(self._schema)
        self._feeds = tuple(replace(feed, maps=()) for feed in feeds_of(recovery.flow))
        # With a trigger of one epoch, that epoch reads all there is: nothing is to be held back.
        self._ends = is_bounded(trigger) and not is_once(trigger)
        self._now: SourceBatch[DataFrame] | None = None  # that was read last
        self._secured = -1  # micro-batch whose entries of Spark's log are durable

    @property
    def latest(self) -> Any:
        """JVM RDD of the last micro-batch, which new executors read in a trial epoch."""
        return self._rows.latest

    def program(self, lanes: LaneFlow) -> Program:
        """Return the program that executors get, for DataFrames and for Godwit's own sources."""
        return replace(super().program(lanes), feeds=self._feeds, schema=self._schema)

    def open(self) -> None:
        """Check Spark's offset log against the checkpoint, and reorder it for this run's plan.

        Its lines follow the sources of the flow, which may have changed since the last run. Own
        sources are opened; a bounded query fixes their end now.
        """
        log = self._log
        self._batches.check_last(None if log.latest is None else log.latest.last_batch)
        update_layout(log.storage, self._offsets, committed=log.latest is not None)
        write_query_id(log.storage, log.identity.query_id)
        remove_leftovers(log.storage)
        super().open()
        if self._ends:
            self.positions.fix_ends()

    def identify(self, number: int, last: BatchRef | None) -> BatchRef | None:
        """Return the reference to a micro-batch; ``None`` if it is committed already.

        `last`: last committed batch.
        """
        return self._batches.identify(number, None if last is None or not last.of_spark else last)

    def look(self, ref: BatchRef, spark: SparkSession) -> SourceLook:
        """Return the known arrival times of a micro-batch's rows; called on Spark's thread."""
        return self._looks.look(ref, query_of(spark))

    def read(self, batch: SourceBatch[DataFrame], instruction: EpochInstruction) -> EpochRows:
        """Return a batch's rows: of the micro-batch, if any, and of own sources' splits.

        Few rows of a micro-batch are read on the driver; many are an RDD of the JVM.
        """
        self._now = batch
        own = super().read(batch, instruction)
        if batch.rows is None:
            return own
        read = self._rows.read(batch.rows, batch.ref.number)
        frames = EpochRows(here=read) if isinstance(read, list) else EpochRows(rdd=read)
        return frames.with_others(own)

    def force_log(self, ref: BatchRef) -> None:
        """Make Spark's own log entries durable, once for each micro-batch."""
        if ref.of_spark and ref.number != self._secured:
            self._batches.force_log(ref)
            self._secured = ref.number

    def committed(self, rows: int) -> int | None:
        """Record the commit of the last batch; return how many of its `rows` a micro-batch had.

        ``None`` if it has no micro-batch. The next micro-batch is expected to have as many.
        """
        if self._now is None or self._now.rows is None:
            return None
        of_frames = max(0, rows - (self._now.split_rows or 0))
        self._rows.expect(of_frames)
        self._looks.committed(of_frames)
        return of_frames


class SourceThread:
    """Thread that calls own sources; callers stop waiting for it once the query is stopping."""

    def __init__(self, gate: EpochGate) -> None:
        self._gate, self._pool = gate, DaemonPool(1, "godwit-sources")

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function on the thread; return its result or raise its error.

        Raises `GateClosedError` if the query stops meanwhile.
        """
        future = self._pool.submit(function, *args, **kwargs)
        while not wait([future], _LOOK_S).done:
            if self._gate.closed:
                raise GateClosedError
        result: R = future.result()
        return result

    def queue_call(
        self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Queue a call to run on the thread, after those queued before; do not wait for it."""
        self._pool.submit(function, *args, **kwargs)

    def close(self, function: Callable[[], object], timeout_s: float) -> bool:
        """Call a last function on the thread; return whether it ended within the time-out."""
        future = self._pool.submit(function)
        self._pool.close(cancel=False)
        return bool(wait([future], timeout_s).done)


class MicroBatchEpochs:
    """Epochs with rows of DataFrames, of own sources, or of both, by any caller.

    Every epoch is planned and run inside the gate, which lets in one thread at a time, so positions
    are those of the last commit.
    """

    def __init__(
        self, run: QueryRun, rows: MicroBatchRows, *, trigger: Mapping[str, object] | None
    ) -> None:
        self._run, self._rows = run, rows
        self._once = is_once(trigger)
        self.positions = rows.positions
        self.thread = SourceThread(run.gate)
        self.figures = SourceProgress(self.positions, run.num_recent)
        # the last epoch that was offered, until own sources are told that it is committed
        self._offered: tuple[int, SourceBatch[DataFrame]] | None = None
        self._peeked: tuple[int, SourceBatch[DataFrame]] | None = None  # planned after an epoch
        self._without_frames: deque[int] = deque(maxlen=run.num_recent)
        self.read_own = False  # an epoch of this run has read own sources, or they had nothing
        announce_problems(self.positions, run)

    def run_micro_batch(
        self, rows: DataFrame, number: int, stopped: Callable[[], bool]
    ) -> dict[str, float]:
        """Run an epoch over a micro-batch and Godwit's sources; return phase → milliseconds."""
        offer = partial(self._micro_batch, rows, number)
        return self._run_epoch(offer, stopped, broken_off=stopped)

    def has_own_rows(self) -> bool:
        """Plan an epoch of Godwit's sources, for `run_own_epoch`; return whether they have rows."""
        after = self._run.log.latest_epoch
        planned = self._plan_own()
        if planned is None:
            self.figures.record_no_rows()
        self._peeked = None if planned is None else (after, planned)
        self.read_own = self.read_own or planned is None
        return planned is not None

    def run_own_epoch(self, stopped: Callable[[], bool]) -> None:
        """Run an epoch over Godwit's sources, unless another has read their rows meanwhile."""
        self._run_epoch(self._batch_of_own, stopped)

    def had_micro_batch(self, epoch: int) -> bool:
        """Return whether an epoch with input had rows of DataFrames; true if that is unknown."""
        return epoch not in self._without_frames

    def _plan_own(self) -> SourceBatch[DataFrame] | None:
        """Return the next batch of Godwit's own sources; ``None`` if they have no rows."""
        return self._planned(partial(self.positions.plan, everything=self._once))

    def _planned(self, plan: Callable[[int], _Planned]) -> _Planned:
        """Call `plan` with the number of tasks that can run at once; return its batch.

        Runs on the thread of Godwit's own sources, after the last commit was reported to them.
        """

        def call() -> _Planned:
            """Report the last commit, and plan for the tasks that can run at once."""
            self._note_commit()
            return plan(num_tasks(self._run))

        return self.thread.call(call)

    def run_round(self, stopped: Callable[[], bool], *, due: bool) -> bool:
        """Run an epoch over rows that wait in feedback loops, if any; return whether it ran.

        `due`: an epoch is due anyway, so it runs even if the loops pause.
        """
        plan = partial(self.positions.plan_next_round, due=due)
        if self._planned(plan) is None:
            return False

        def round_batch(last: BatchRef | None) -> SourceBatch[DataFrame] | None:
            """Plan the round again; ``None`` if another epoch has read the rows."""
            planned = self._planned(plan)
            return None if planned is None else self._own_batch(planned, last)

        self._run_epoch(round_batch, stopped)
        return True

    def _own_batch(
        self, planned: SourceBatch[DataFrame], last: BatchRef | None
    ) -> SourceBatch[DataFrame]:
        """Return a batch of Godwit's sources only, which refers to the last micro-batch."""
        ref = planned.ref if last is None or not last.of_spark else last
        return _merge_batches(ref, None, planned, self._observe_sources(planned))

    def _note_commit(self) -> None:
        """Report the last batch to Godwit's own sources, once it is committed."""
        if self._offered is not None and self._run.log.latest_epoch >= self._offered[0]:
            batch = self._offered[1]
            self.positions.committed(batch.ref, others=batch.rows is not None)
            self._offered = None

    def _micro_batch(
        self, rows: DataFrame, number: int, last: BatchRef | None
    ) -> SourceBatch[DataFrame] | None:
        """Plan the epoch of micro-batch `number`; ``None`` if that is committed already."""
        ref = self._rows.identify(number, last)
        if ref is None:
            return None
        planned = None if self._once and self.read_own else self._plan_own()
        if planned is None:
            planned = self._planned(self.positions.plan_loops_only)
        look = self._rows.look(ref, rows.sparkSession)
        if self.positions.sources:
            look = self._observe_sources(planned).with_others(look)
        return _merge_batches(ref, rows, planned, look)

    def _batch_of_own(self, last: BatchRef | None) -> SourceBatch[DataFrame] | None:
        """Return a batch of Godwit's sources; ``None`` if a micro-batch took the rows meanwhile."""
        peeked, self._peeked = self._peeked, None
        if peeked is not None and peeked[0] == self._run.log.latest_epoch:
            planned: SourceBatch[DataFrame] | None = peeked[1]
        else:
            planned = self._plan_own()
        return None if planned is None else self._own_batch(planned, last)

    def _observe_sources(self, planned: SourceBatch[DataFrame]) -> SourceLook:
        """Return estimated arrival times of a batch of Godwit's sources, to measure latency."""
        return self.figures.observe(planned, time.time_ns() // 1000)

    def _run_epoch(
        self,
        offer: Callable[[BatchRef | None], SourceBatch[DataFrame] | None],
        stopped: Callable[[], bool],
        **broken_off: Callable[[], bool],
    ) -> dict[str, float]:
        """Run an epoch, and record its figures on the thread of own sources.

        Parameters and result: see `QueryRun.with_input`.
        """
        began_s, run = time.monotonic(), self._run
        epochs: list[tuple[int, SourceBatch[DataFrame]]] = []

        def offered(last: BatchRef | None) -> SourceBatch[DataFrame] | None:
            """Build the epoch's batch, and remember it."""
            batch = offer(last)
            if batch is not None:
                self._offered = (run.log.latest_epoch + 1, batch)
                epochs.append(self._offered)
            return batch

        took_ms = run.with_input(offered, stopped, **broken_off)
        for epoch, batch in epochs:
            self.read_own = True
            if batch.rows is None:
                self._without_frames.append(epoch)
            self.thread.queue_call(self._record_figures, epoch, batch, began_s, time.monotonic())
        return took_ms

    def _record_figures(
        self, epoch: int, batch: SourceBatch[DataFrame], began_s: float, ended_s: float
    ) -> None:
        """Record an epoch's figures by source; called on the thread of Godwit's sources."""
        self._note_commit()
        self.figures.record_epoch(epoch, batch, began_s, ended_s)


def _merge_batches(
    ref: BatchRef, frames: DataFrame | None, planned: SourceBatch[DataFrame], look: SourceLook
) -> SourceBatch[DataFrame]:
    """Build an epoch's batch from a micro-batch's rows, if any, and rows of Godwit's sources.

    `ref`: reference to the micro-batch. `look`: arrival times of all rows.
    """
    after = planned.ref
    ref = msgspec.structs.replace(ref, positions=after.positions, identities=after.identities)
    return replace(planned, ref=ref, rows=frames, look=look)


_BETWEEN_US: Final = 500_000
"""So long after the commit of a micro-batch Spark is at its sources again, on any machine."""
_POLL_US: Final = 100_000
"""About the time from one look at the sources to the next, while they have no rows."""


class MicroBatchLooks:
    """Polls of a Spark query's sources, from Spark's logs and progress.

    A file's rows arrive when the file is written, a time that the log of a file source has for
    every file.  For other sources Spark's progress has the newest offset at each micro-batch, but
    only when the next one begins, so the backlog is known when the rows are read.

    Spark does not report polls without rows.  If the gap between two micro-batches is longer than
    `_BETWEEN_US`, the sources are taken to have been polled without result until one polling
    interval before the second micro-batch: its rows arrived since then.
    """

    def __init__(
        self,
        offsets: OffsetLayout,
        trigger: Mapping[str, object] | None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,  # Unix time
    ) -> None:
        self._now_us = now_us
        # by Spark's number of a source: the source of the flow that reads it
        self._names = [readings[0].source if readings else "" for readings in offsets.readings]
        self._interval_us = round(known_interval_s(trigger) * 1e6)
        self._committed_us: int | None = None  # when the last micro-batch of this run was
        self._rows = 0  # it had
        self._last: tuple[int, int] | None = None  # its number, and when Spark looked for it

    def committed(self, rows: int) -> None:
        """Record the commit of the last micro-batch, and its number of rows."""
        self._committed_us, self._rows = self._now_us(), rows

    def look(self, batch: BatchRef, query: StreamingQuery | None) -> SourceLook:
        """Return the known arrival times of a micro-batch's rows."""
        at_us, arrived_us = self._now_us(), {}
        with suppress(ValueError, KeyError, TypeError, IndexError):  # in a form of another version
            at_us = 1000 * int(json.loads(batch.offsets.splitlines()[1])["batchTimestampMs"])
        with suppress(ValueError, KeyError, TypeError, IndexError):
            arrived_us = self._file_times_us(batch)
        before = {}
        if query is not None and self._last is not None and len(arrived_us) < len(self._names):
            with suppress(Exception):  # whatever Py4J raises; these are figures
                before = self._backlogs(query, *self._last)
        self._last = (batch.number, at_us)
        nothing_us: dict[str, int] = {}
        if self._committed_us is not None:
            idle_us = at_us - self._committed_us - self._interval_us
            if idle_us > _BETWEEN_US:
                nothing_us = dict.fromkeys(self._names, at_us - max(self._interval_us, _POLL_US))
        return SourceLook(at_us=at_us, nothing_us=nothing_us, before=before, arrived_us=arrived_us)

    def _file_times_us(self, batch: BatchRef) -> dict[str, list[int]]:
        """Return source → its files' modification times (Unix microseconds) in a micro-batch."""
        written: dict[str, list[int]] = {}
        for path, log in batch.sources.items():
            name = self._names[int(path.split("/")[1])]
            times = (1000 * int(file["timestamp"]) for file in parse_file_log(log))
            written.setdefault(name, []).extend(times)
        return {name: times for name, times in written.items() if times}

    def _backlogs(
        self, query: StreamingQuery, number: int, at_us: int
    ) -> dict[str, list[tuple[int, float]]]:
        """Return source → one pair: `at_us`, and the source's backlog at micro-batch `number`.

        In rows after maps, by the ratio of offsets to rows in that micro-batch. Empty if it is not
        the last one in the query's progress.
        """
        progress = query.lastProgress
        if progress is None or progress["batchId"] != number:
            return {}
        backlogs: dict[str, list[tuple[int, float]]] = {}
        num_offsets = 0
        for name, source in zip(self._names, progress["sources"], strict=True):
            begin, end, latest = (
                source.get(f"{which_offset}Offset") for which_offset in ("start", "end", "latest")
            )
            num_offsets += offsets_behind(begin, end) or 0
            behind = offsets_behind(end, latest)
            if behind is not None:
                backlogs[name] = [(at_us, behind + backlogs.get(name, [(0, 0.0)])[0][1])]
        rows_an_offset = self._rows / num_offsets if num_offsets else 1.0
        return {
            name: [(time_us, offsets * rows_an_offset) for time_us, offsets in points]
            for name, points in backlogs.items()
        }
