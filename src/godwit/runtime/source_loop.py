"""The loop of epochs of a flow whose sources are all Godwit's own: no micro-batch engine.

One thread polls the sources for the end positions of an epoch, runs the epoch, confirms the commit
to the sources, and begins again.  While there are no rows it runs the epochs without input that are
due, advances the protocol's clock, and renews the claim on the checkpoint.  The positions in the
commit records are the only log of the rows that were read.

Invariants: all methods of a source but ``read`` are called by this thread alone; an error on this
thread fails the query; a query with bounded input ends once no rows wait; and the sources are
closed before the query counts as ended.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from dataclasses import replace
from time import thread_time
from typing import TYPE_CHECKING, Any, Final

from godwit.engine.flow_epochs import announce_problems
from godwit.engine.row_limit import RowLimit
from godwit.runtime.lifecycle import EpochDriver
from godwit.runtime.settings import interval_s, is_bounded, is_once
from godwit.runtime.source_figures import SourceProgress, now_us
from godwit.runtime.threads import close_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from godwit.checkpoint.records import BatchRef, CommitRecord
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.source_positions import SourcePositions
    from godwit.runtime.run import QueryRun

_LOOK_S: Final = 0.05
"""Polling interval: bounds how long ``stop()`` waits, apart from a running epoch."""
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 2.0
_IDLE_SHARE: Final = 9
"""While there are no rows, a look at the sources is followed by a pause that is longer by this, so
that a directory of many files is not listed all the time."""
_RESTS_AFTER_S: Final = 5.0
_REST_SHARE: Final = 150
_LONGEST_REST_S: Final = 0.1
"""Once there have been no rows for a while, a look is followed by a pause that is longer by this
than the CPU time it took, so that a query without input takes little of a core."""
_LONG_S: Final = 10.0
"""A call of a source that takes longer is in the query's status."""


class ReadPace:
    """Schedules source polls: at the trigger, backing off while there is no input."""

    def __init__(self, trigger: Mapping[str, object] | None) -> None:
        self.interval_s = interval_s(trigger)
        self._trigger_s = self._look_s = time.monotonic()  # when each is due again
        self._rows_s = self._look_s  # when there were rows for the last time
        self._at_once = False  # whether the next poll does not wait for the trigger

    @property
    def seconds_to_poll(self) -> float:
        """Seconds until sources are to be polled again."""
        due_s = self._look_s if self._at_once else max(self._trigger_s, self._look_s)
        return due_s - time.monotonic()

    def poll_at_once(self) -> None:
        """Let the next poll not wait for the trigger: the limit per epoch has held rows back."""
        self._at_once = True

    def record_poll(self, began_s: float, *, has_rows: bool) -> None:
        """Record a poll of the sources that began at `began_s`, and whether they had rows."""
        self._look_s = looked_s = time.monotonic()
        self._at_once = False
        if self.interval_s and looked_s >= self._trigger_s:
            # Epochs begin at multiples, and those that are missed are not made up for.
            missed = max(0.0, looked_s - self._trigger_s) // self.interval_s
            self._trigger_s += (missed + 1) * self.interval_s
        if has_rows:
            self._rows_s = looked_s
        else:
            pause_s = max(_FIRST_PAUSE_S, _IDLE_SHARE * (looked_s - began_s))
            self._look_s += min(pause_s, _LONGEST_PAUSE_S)

    def pause_s(self, cpu_s: float) -> float:
        """Return the seconds to pause after a check that took `cpu_s` of CPU time."""
        pause_s = min(max(self.seconds_to_poll, 0.001), _LOOK_S)
        if time.monotonic() - self._rows_s > _RESTS_AFTER_S:
            pause_s = max(pause_s, min(_REST_SHARE * cpu_s, _LONGEST_REST_S))
        return pause_s


class Waiters:
    """Callers of ``processAllAvailable``, each with the source positions that it waits for.

    All methods but `wait` are called by the thread that calls the sources.
    """

    def __init__(self, positions: SourcePositions) -> None:
        self._positions = positions
        self._lock = threading.Lock()
        # set once its caller need not wait → positions to reach; ``None``: not known yet
        self._waiting: dict[threading.Event, Mapping[str, Any] | None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, over: threading.Event) -> None:
        """Wait until the available rows are processed, or `over` is set: the query has ended."""
        done = threading.Event()
        with self._lock:
            self._waiting[done] = None
        while not done.wait(_LOOK_S):
            if over.is_set():
                return

    def set_targets(self) -> None:
        """Set the positions that new waiters wait for: the sources' present ends."""
        with self._lock:
            new = [done for done, ends in self._waiting.items() if ends is None]
        if new:
            ends = self._positions.ends()
            with self._lock:
                self._waiting.update(dict.fromkeys(new, ends))

    def release_finished(self, deliver: Callable[[], object] = lambda: None) -> None:
        """Wake waiters whose rows are committed, after calling `deliver`."""
        with self._lock:
            waiting = dict(self._waiting)
        for done, ends in waiting.items():
            if ends is not None and self._positions.reached(ends):
                deliver()
                with self._lock:
                    del self._waiting[done]
                done.set()


def num_tasks(run: QueryRun) -> int:
    """Return the approximate number of tasks that can run concurrently."""
    return max(1, sum(e.lanes for e in run.cluster.executors.values()))


class SourceLoop(EpochDriver):
    """Runs the epochs of a query whose sources are all Godwit's own."""

    what = "the loop of epochs"

    def __init__(
        self,
        run: QueryRun,
        positions: SourcePositions,  # open; closed by the loop
        *,
        trigger: Mapping[str, object] | None,
        # longest time of an epoch; ``None``: an epoch takes all rows that are available
        longest_s: float | None = None,
    ) -> None:
        super().__init__(run)
        self._positions = positions
        announce_problems(positions, run)
        self._trigger, self._pace = trigger, ReadPace(trigger)
        self._reads_here = False  # the last batch was small: the driver has read it
        self._bounded = is_bounded(trigger)  # or the sources are drained
        self._limit = RowLimit(math.inf if longest_s is None else longest_s)
        self._waiters = Waiters(self._positions)
        self._figures = SourceProgress(self._positions, run.num_recent)
        self._input_ended = False
        self._message, self._has_rows = "Initializing sources", False

    # -- EpochDriver ------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Identifier of the query: that of the checkpoint."""
        return str(uuid.UUID(self._run.log.identity.query_id))

    def status(self) -> dict[str, Any]:
        """Return ``message``, ``isDataAvailable`` and ``isTriggerActive``, as Spark does."""
        if self._over.is_set():
            return self._status_of_end()
        return {
            "message": self._positions.unanswered(_LONG_S) or self._message,
            "isDataAvailable": self._has_rows,
            "isTriggerActive": self._gate.busy,
        }

    def process_all_available(self) -> None:
        """Wait until all rows that the sources have now are processed, or the query has ended."""
        if self._bounded:
            self._over.wait()
        else:
            self._waiters.wait(self._over)

    def stop(self) -> None:
        """End the loop, and wait for the current epoch and delivery; no-op on the loop's thread.

        Raises `StopTimeoutError` if a source does not answer in time.
        """
        self._wait_for_end(self._positions)

    def sources(self) -> dict[str, Any] | None:
        """Return ``batchId``, and lag by source in ``sources``; ``None`` before the first epoch."""
        number = self._figures.last_number
        return None if number is None else {"batchId": number, "sources": self._figures.sources()}

    def rows_held_back(self) -> int | None:
        """Return the sources' backlog in rows, as of the last poll."""
        return self._figures.rows_held_back()

    def add_source_figures(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return epochs' progress with the figures of their sources.

        ``durationMs`` gets ``triggerExecution``, as Spark has it: from polling the sources to the
        commit or later.
        """
        noted = self._figures.recorded()
        filled = []
        for entry in progress:
            figures, took_ms = noted.get(entry["batchId"], ([], 0.0))
            if figures:
                took_ms = max(took_ms, entry["durationMs"]["epoch"])
                durations = {**entry["durationMs"], "triggerExecution": round(took_ms, 1)}
                filled.append({**entry, "sources": figures, "durationMs": durations})
            else:
                filled.append(entry)
        return filled

    # -- the thread -------------------------------------------------------------------------------

    def _close_sources(self) -> None:
        """Close the sources."""
        # What cannot be closed is in the log; nothing of the stream depends on it.
        close_all([("the sources", self._positions.close)])
        self._has_rows = False

    def _run_loop(self) -> None:
        """Run epochs until the input ends or the query stops, and finish the last delivery."""
        try:
            self._run_epochs()
        finally:
            self._run.loop.finish_delivery()

    def _run_epochs(self) -> None:
        """Run epochs with and without input until the input ends or the query is stopped."""
        if self._bounded:
            self._positions.fix_ends()
        while not self._gate.closed:
            began_cpu_s = thread_time()
            self._go_round()
            self._waiters.set_targets()
            if self._waiters and not self._run.is_pending:
                self._waiters.release_finished(self._finish_available)
            if self._run_input_epoch() or self._run_quiet_epoch():
                continue
            self._run.loop.finish_delivery()  # no epoch is at hand that it could run beside
            if self._input_ended and not self._run.is_pending:
                self.drained = True
                return
            self._figures.measure_lag()
            pause_s = self._pace.pause_s(thread_time() - began_cpu_s)
            self._gate.wait_for_close(_LOOK_S if self._input_ended else pause_s)

    def _finish_available(self) -> None:
        """Deliver the last epoch of all rows that were there when someone began to wait."""
        self._run.loop.finish_delivery()
        self._has_rows = False
        if not self._pace.interval_s:
            self._message = "Waiting for data to arrive"

    def _end_input_at(self, ends: Mapping[str, Any]) -> str:
        """Let the input end; return the reason why that is refused, or an empty text."""
        if self._bounded:
            return "its input is bounded already" if ends else ""
        if problem := self._positions.problem_of_ends(ends):
            return problem
        self._positions.fix_ends(ends)
        self._bounded, self._pace = True, ReadPace(None)
        return ""

    def _run_input_epoch(self) -> bool:
        """Run an epoch if the trigger is due and sources have rows; return whether it ran.

        Rows waiting in loops are read without waiting for the trigger.
        """
        if self._input_ended or self._pace.seconds_to_poll > 0:
            return self._run_round(due=False)
        began_s = time.monotonic()
        once = is_once(self._trigger)
        if self._limit.applies:
            self._limit.adapt(self._run.placement_change())
        limits, after = self._limit.per_source(self._positions.sources), self._run.log.latest
        asked_us = now_us()
        planned = self._plan(limits, everything=once)
        self._has_rows = planned is not None
        self._pace.record_poll(began_s, has_rows=self._has_rows)
        if planned is None:
            self._figures.record_no_rows()
            self._message = "Waiting for data to arrive"
            if self._bounded:
                self._end_input()
            return False
        self._message = "Processing new data"
        if (held_back := self._figures.backlog_without(planned)) is not None:
            self._run.epoch_begun(planned.split_rows or 0, held_back)
        if self._run_epoch(planned, asked_us, began_s, after) and once:
            self._end_input()
        if self._pace.interval_s:
            self._message = "Waiting for next trigger"
        return True

    def _plan(
        self, limits: Mapping[str, int] | None, *, everything: bool
    ) -> SourceBatch[Any] | None:
        """Return the next batch of source rows, in few splits if the driver is to read it.

        Rows of one split are aggregated, hashed and divided by lane at once.
        """
        parallelism = 1 if self._reads_here else num_tasks(self._run)
        planned = self._positions.plan(parallelism, limits=limits, everything=everything)
        if planned is not None and self._reads_here and not planned.has_few_rows:
            planned = self._positions.plan(
                num_tasks(self._run), limits=limits, everything=everything
            )
        if planned is not None:
            self._reads_here = planned.has_few_rows
        return planned

    def _run_round(self, *, due: bool) -> bool:
        """Run an epoch over rows that wait in feedback loops, if any; return whether it ran.

        `due`: an epoch is due anyway, so it runs even if the loops pause.
        """
        began_s, asked_us, after = time.monotonic(), now_us(), self._run.log.latest
        planned = self._positions.plan_next_round(num_tasks(self._run), due=due)
        if planned is None:
            return False
        self._run_epoch(planned, asked_us, began_s, after)
        return True

    def _run_epoch(
        self,
        planned: SourceBatch[Any],
        asked_us: int,
        began_s: float,
        after: CommitRecord | None,  # the last record when the batch was planned
    ) -> bool:
        """Run an epoch with rows, and call `Source.committed` after its commit.

        Returns false without one if the state was repartitioned since: what waits in loops has
        another position then, and the batch is to be planned again. `asked_us`: time of the poll
        that found the rows.
        """
        batch = replace(planned, look=self._figures.observe(planned, asked_us))
        outdated = False

        def offered(_: BatchRef | None) -> SourceBatch[Any] | None:
            """Return the batch, unless an epoch was committed since it was planned."""
            nonlocal outdated
            outdated = self._run.log.latest is not after
            return None if outdated else batch

        self._run.with_input(offered)
        if outdated:
            return False
        ended_s = time.monotonic()
        rows_of = {name: planned.rows_of(name) for name in self._positions.sources}
        self._limit.record_epoch(rows_of, ended_s - began_s)
        if self._limit.cut:
            self._pace.poll_at_once()
        self._positions.committed(planned.ref)
        self._figures.record_epoch(planned.ref.number, planned, began_s, ended_s)
        return True

    def _end_input(self) -> None:
        """Close all windows once bounded input has ended, if the user asked for it."""
        self._input_ended = True
        self._run.end_input()
