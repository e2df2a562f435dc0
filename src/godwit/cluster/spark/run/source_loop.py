"""The loop of epochs of a flow whose sources are all Godwit's own: no micro-batch engine.

One thread asks the sources how far an epoch may read, carries it out, tells the sources that it is
committed, and begins again; while there are no rows it carries out epochs without input that are
due, lets time pass for the protocol, and looks after the claim on the checkpoint.  The positions in
the commit records are the only log of what was read.

Invariants: all of a source's methods but ``read`` are called by this thread alone; whatever is
raised here, the query fails by it; a query whose input has ended has not ended before nothing
waits; and the sources are closed before the query counts as over.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from godwit.cluster.spark.run.lifecycle import is_bounded
from godwit.cluster.spark.run.threads import GateClosedError, close_all
from godwit.cluster.spark.stages import pickling
from godwit.cluster.spark.stages.split_rows import SplitStage, planned_tasks
from godwit.engine.cluster import SourceBatch
from godwit.engine.lane.source_side import SourceSide, insist_on_same_rows
from godwit.engine.source_positions import SourcePositions
from godwit.model.durations import read_duration
from godwit.model.errors import InvalidFlowError, StopTimeoutError
from godwit.model.naming import insist_on_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef
    from godwit.cluster.spark.run.lifecycle import Ending
    from godwit.cluster.spark.run.run import SparkRun
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.recovery import Recovery
    from godwit.engine.source_positions import PlannedRows
    from godwit.sources.source import Lag

__all__ = ["OwnRows", "SourceLoop", "interval_s"]

_LOOK_S: Final = 0.05
"""Nobody who asks or stops the loop waits for longer than this, but for an epoch under way."""
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 2.0
_IDLE_SHARE: Final = 9
"""While there are no rows, a look at the sources is followed by a pause that is longer by this, so
that a directory of many files is not listed all the time."""
_LAG_SHARE: Final = 20
"""The lag of the sources is asked for in as small a part of the time."""
_LEASE_S: Final = 0.5
_TICK_S: Final = 1.0
_STOP_S: Final = 10.0
_KEPT: Final = 1000
"""Epochs whose figures of sources are kept, as many as `SparkRun.progress` has."""


def interval_s(trigger: Mapping[str, object] | None) -> float:
    """Return how far apart epochs with input begin: 0 where they follow each other at once.

    Raises `InvalidFlowError` if the interval of a trigger is none.
    """
    text = (trigger or {}).get("processingTime")
    if text is None:
        return 0.0
    length_us = read_duration(str(text).strip().lower().removeprefix("interval "))
    if length_us is None or length_us < 0:
        raise InvalidFlowError(
            f"The trigger processingTime of start is {text!r}, which is no length of time.",
            remedy='Give an interval such as "500 milliseconds", "1 second" or "2 minutes".',
        )
    return length_us / 1e6


_MAX_TOLD: Final = 100
_logger = logging.getLogger("godwit")
_TOLD: Final = ("description", "inputRowsPerSecond", "processedRowsPerSecond")


class OwnRows:
    """Rows of Godwit's own sources, and their positions (`BatchRows`)."""

    latest: Any = None  # no RDD of the JVM holds them

    # takes what failed, and the error, where the query goes on all the same; the log, until
    # somebody who has events puts something else in its place
    on_failure: Callable[[str, str], None] = staticmethod(
        lambda what, error: _logger.warning("%s failed with %s", what, error)
    )

    def __init__(self, recovery: Recovery, log: CommitLog) -> None:
        del log  # the recovery has the positions
        sources = recovery.flow.own_sources
        self.positions = SourcePositions(sources, recovery.sources, on_failure=self._failed)
        self._told: set[tuple[str, str]] = set()
        # Reading is done by copies that were never opened, here as on executors.
        copies = pickle.loads(pickling.dumps(dict(sources)))  # noqa: S301  our own
        self.stage = SplitStage(side=SourceSide.of(recovery.flow), sources=copies)

    def _failed(self, what: str, error: str) -> None:
        """Tell of a failure, once."""
        if (what, error) not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add((what, error))
            self.on_failure(what, error)

    def open(self) -> None:
        """See `BatchRows.open`."""
        self.positions.open()

    def read(self, batch: SourceBatch[PlannedRows], instruction: EpochInstruction) -> Any:
        """See `BatchRows.read`."""
        return planned_tasks(batch.rows, len(instruction.places))

    def check(self, batch: SourceBatch[PlannedRows], reports: Sequence[LaneReport]) -> None:
        """See `BatchRows.check`: a split may have been read several times."""
        insist_on_same_rows(reports, batch.rows.splits)

    def secure(self, ref: BatchRef) -> None:
        """See `BatchRows.secure`: the commit record is all there is."""

    def expect(self, rows: int) -> None:
        """See `BatchRows.expect`: splits say how many rows they have."""

    def close(self) -> None:
        """See `BatchRows.close`; again where the loop has closed them, which changes nothing."""
        self.positions.close()


class _Asked:
    """Somebody who waits until what was there when they asked is processed."""

    def __init__(self) -> None:
        self.ends: Mapping[str, Any] | None = None  # positions; None: not looked up yet
        self.done = threading.Event()


class SourceLoop:
    """Calls for the epochs of a run from its sources (`EpochDriver`)."""

    what = "the loop of epochs"

    def __init__(
        self,
        run: SparkRun,
        rows: OwnRows,  # open; closed by the loop
        *,
        trigger: Mapping[str, object] | None,
    ) -> None:
        self._run, self._gate, self._positions = run, run.gate, rows.positions
        rows.on_failure = run.conducting.background_failed
        self._trigger, self._interval_s = trigger, interval_s(trigger)
        self._input_ended = False
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._asked: list[_Asked] = []
        self._message, self._has_rows = "Initializing sources", False
        self._lags: dict[str, Lag] = {}
        self._figures: deque[tuple[int, list[dict[str, Any]], float]] = deque(maxlen=_KEPT)
        now_s = time.monotonic()
        self._trigger_s = self._look_s = self._lag_s = now_s  # when each is due again
        self._noted_s = now_s
        self._lease_s, self._tick_s = now_s + _LEASE_S, now_s + _TICK_S
        self._ending: Ending
        self._thread = threading.Thread(target=self._work, name="godwit-epochs", daemon=True)

    # -- EpochDriver ------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """See `EpochDriver.id`: that of the checkpoint."""
        return str(uuid.UUID(self._run.log.identity.query_id))

    @property
    def is_active(self) -> bool:
        """See `EpochDriver.is_active`."""
        return not self._over.is_set()

    def failure(self) -> BaseException | None:
        """See `EpochDriver.failure`: whatever ends the loop closes the gate with it."""
        return None

    def status(self) -> dict[str, Any]:
        """See `EpochDriver.status`."""
        over = self._over.is_set()
        failure = self._gate.failure
        message = "Stopped" if failure is None else f"Terminated with exception: {failure}"
        return {
            "message": message if over else self._message,
            "isDataAvailable": self._has_rows and not over,
            "isTriggerActive": self._gate.busy,
        }

    def begin(self, ending: Ending) -> None:
        """See `EpochDriver.begin`."""
        self._ending = ending
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """See `EpochDriver.wait`."""
        if timeout_s is not None:
            insist_on_number(
                "The timeout of awaitTermination",
                timeout_s,
                least=0,
                whole=False,
                error=InvalidFlowError,
            )
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def process_all_available(self) -> None:
        """See `EpochDriver.process_all_available`."""
        if is_bounded(self._trigger):
            self._over.wait()
            return
        asked = _Asked()
        with self._lock:
            self._asked.append(asked)
        while not asked.done.wait(_LOOK_S):
            if self._over.is_set():
                return

    def stop(self) -> None:
        """See `EpochDriver.stop`."""
        if threading.current_thread() is self._thread or self._over.wait(_STOP_S):
            return
        raise StopTimeoutError(
            f"A source has not answered for {_STOP_S:.0f} s.",
            remedy="No further epoch begins. Look why it does not answer; its thread ends with "
            "the process.",
        )

    def sources(self) -> dict[str, Any] | None:
        """See `EpochDriver.sources`."""
        if not self._figures:
            return None
        number, figures, _ = self._figures[-1]
        lags = self._lags
        return {
            "batchId": number,
            "sources": [
                {
                    **{key: figure[key] for key in _TOLD},
                    "behind": lags[figure["name"]].rows if figure["name"] in lags else None,
                    "metrics": _lag_metrics(lags.get(figure["name"])),
                }
                for figure in figures
            ],
        }

    def rows_held_back(self) -> int | None:
        """See `EpochDriver.rows_held_back`: as of the last time that the sources were asked."""
        known = [lag.rows for lag in self._lags.values() if lag.rows is not None]
        return sum(known) if known else None

    def with_sources(self, progress: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `EpochDriver.with_sources`.

        ``durationMs`` gets ``triggerExecution``, as Spark has it: from asking the sources on.
        """
        with self._lock:
            known = {number: (figures, took_ms) for number, figures, took_ms in self._figures}
        filled = []
        for made in progress:
            figures, took_ms = known.get(made["batchId"], ([], 0.0))
            if figures:
                durations = {**made["durationMs"], "triggerExecution": round(took_ms, 1)}
                filled.append({**made, "sources": figures, "durationMs": durations})
            else:
                filled.append(made)
        return filled

    # -- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._run.use_this_thread()
            self._loop()
        except GateClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  without this thread, rows would wait for ever
            self._gate.fail(error)
        finally:
            # What cannot be closed is in the log; nothing of the stream depends on it.
            close_all([("the sources", self._positions.close)])
            self._has_rows = False
            self._over.set()
        self._ending.finish()

    def _loop(self) -> None:
        if is_bounded(self._trigger):
            self._positions.end_with_what_is_there()
        while not self._gate.closed:
            self._insist_on_lease()
            self._look_up_what_is_asked()
            self._answer()
            if self._read() or self._without_rows():
                continue
            if self._input_ended and not self._run.pending:
                return
            self._measure_lag()
            self._gate.wait_for_close(self._pause_s())

    def _read(self) -> bool:
        """Carry out an epoch with rows, if it is time and there are any; say whether it was."""
        now_s = time.monotonic()
        if self._input_ended or now_s < max(self._trigger_s, self._look_s):
            return False
        once = self._trigger is not None and "once" in self._trigger
        planned = self._positions.plan(self._cores, everything=once)
        looked_s = time.monotonic()
        self._look_s = looked_s
        if self._interval_s:
            # Epochs begin at multiples, and those that are missed are not made up for.
            missed = max(0.0, looked_s - self._trigger_s) // self._interval_s
            self._trigger_s += (missed + 1) * self._interval_s
        self._has_rows = planned is not None
        if planned is None:
            pause_s = max(_FIRST_PAUSE_S, _IDLE_SHARE * (looked_s - now_s))
            self._look_s += min(pause_s, _LONGEST_PAUSE_S)
            self._message = "Waiting for data to arrive"
            if is_bounded(self._trigger):
                self._end_input()
            return False
        self._message = "Processing new data"
        batch = SourceBatch(ref=planned.ref, rows=planned)
        self._run.with_input(lambda _last: batch)
        self._positions.committed(planned.ref)
        self._note(planned, now_s)
        if once:
            self._end_input()
        self._message = "Waiting for next trigger" if self._interval_s else self._message
        return True

    def _without_rows(self) -> bool:
        """Carry out an epoch without input, if one is due; else let time pass."""
        if self._run.due:
            self._run.without_input()
            return True
        if self._run.view.awaits and time.monotonic() >= self._tick_s:
            self._tick_s = time.monotonic() + _TICK_S
            self._run.let_time_pass()
        return False

    def _end_input(self) -> None:
        self._input_ended = True
        self._run.end_input()

    def _pause_s(self) -> float:
        """Seconds until something is to be looked at again."""
        if self._input_ended:
            return _LOOK_S
        next_s = max(self._trigger_s, self._look_s) - time.monotonic()
        return min(max(next_s, 0.001), _LOOK_S)

    @property
    def _cores(self) -> int:
        """Number of tasks that can run at once, about."""
        return max(1, sum(e.lanes for e in self._run.cluster.executors.values()))

    def _insist_on_lease(self) -> None:
        if time.monotonic() >= self._lease_s:
            self._lease_s = time.monotonic() + _LEASE_S
            self._run.insist_on_lease()

    # -- for those who wait -----------------------------------------------------------------------

    def _look_up_what_is_asked(self) -> None:
        with self._lock:
            new = [asked for asked in self._asked if asked.ends is None]
        if new:
            ends = self._positions.ends()
            for asked in new:
                asked.ends = ends

    def _answer(self) -> None:
        """Let those go who wait for what is processed by now."""
        if not self._asked or self._run.pending:
            return
        with self._lock:
            waiting = list(self._asked)
        for asked in waiting:
            if asked.ends is not None and self._positions.reached(asked.ends):
                with self._lock:
                    self._asked.remove(asked)
                asked.done.set()

    # -- figures ----------------------------------------------------------------------------------

    def _note(self, rows: PlannedRows, began_s: float) -> None:
        """Keep figures of an epoch's sources, in the words of Spark's progress."""
        now_s = time.monotonic()
        since_s, self._noted_s = max(now_s - self._noted_s, 1e-9), now_s
        self._measure_lag()
        before = self._positions.described(rows.begins)
        after = self._positions.described(rows.ref.positions)
        figures: list[dict[str, Any]] = []
        for name, source in self._positions.sources.items():
            counts = [n.split.rows for n in rows.splits if n.source == name]
            known = [count for count in counts if count is not None]
            count = sum(known) if len(known) == len(counts) else None
            figures.append(
                {
                    "name": name,
                    "description": source.identity,
                    "startOffset": before.get(name),
                    "endOffset": after.get(name),
                    "numInputRows": count,
                    "inputRowsPerSecond": None if count is None else count / since_s,
                    "processedRowsPerSecond": None
                    if count is None
                    else count / max(now_s - began_s, 1e-9),
                    "metrics": _lag_metrics(self._lags.get(name)),
                }
            )
        with self._lock:
            self._figures.append((rows.ref.number, figures, (now_s - began_s) * 1e3))

    def _measure_lag(self) -> None:
        now_s = time.monotonic()
        if now_s < self._lag_s:
            return
        self._lags = self._positions.lags()
        ended_s = time.monotonic()
        self._lag_s = ended_s + max(_LAG_SHARE * (ended_s - now_s), _LOOK_S)


def _lag_metrics(lag: Lag | None) -> dict[str, str]:
    if lag is None:
        return {}
    found = {"lagRows": lag.rows, "lagBytes": lag.size_bytes, "oldestUs": lag.oldest_us}
    return {name: str(value) for name, value in found.items() if value is not None}
