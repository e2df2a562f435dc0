"""Lanes that stay between epochs: which epochs they work, and when their job is started and ended.

The problem: a Spark job of no work takes tens of milliseconds, most of a small epoch.  So one long
job holds a Python task per lane, and the driver hands each its rows and instruction by a socket,
brings what lanes send on to lanes of the next level, and collects the reports.

The invariants:

- *An epoch never waits for a job.*  Whatever the resident lanes cannot work, or not now, goes as
  Spark jobs, as without them: while they start or are not to be had, epochs with more rows than the
  driver takes, and those in which a lane refuses (an error of the user's, more rows between two
  levels than the driver passes on).
- *An attempt is the resident lanes' from its beginning to its end, or not theirs.*  If one is lost
  in the middle, the attempt is, and all lanes are let go with it: no answer to an attempt that was
  given up can be taken for one to a later attempt, since its channel is closed.  Every answer names
  its attempt besides.
- *Cores are held for small epochs only.*  A large epoch has them all: the lanes end before it and
  start again once several epochs in a row were small.
- *Spark's executors end without them.*  The job is ended before executors are given back, when its
  places are not today's, and with the query.
"""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from godwit.engine.cluster import AttemptLostError
from godwit.model import events
from godwit.spark.resident.job import LaneJob, LaneLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport, Place
    from godwit.spark.resident.job import Tasks

_SMALL_IN_A_ROW = 2
_RESTS_AFTER_REFUSAL = 10  # epochs
_PAUSE_S, _PAUSE_AT_MOST_S = 1.0, 60.0


class ResidentLanes:
    """The resident lanes of a run; `run` and `yield_cores` are called by an epoch's thread."""

    patience_s = 30.0
    """Time for which lanes are waited for in the background, until they count as not to be had."""

    waits_s = 0.0
    """Test hook; 0 in production. How long an epoch waits for lanes that start."""

    def __init__(
        self,
        flow: Callable[[], LaneFlow],  # what lanes need of the flow, called in each; picklable
        tasks: Callable[[int], Tasks],  # makes those of a job, by its number
        *,
        announce: Callable[..., None],  # takes kind and values of an event
        # Called while an epoch's lanes work; returns why the epoch stops waiting for them, or
        # an empty text; raises the error that ends the epoch.
        given_up: Callable[[], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = 0  # that were worked by resident lanes
        self._flow, self._tasks = flow, tasks
        self._announce, self._given_up, self._now_s = announce, given_up, now_s
        self._lock = threading.Lock()
        self._job: LaneJob | None = None
        self._closed = False
        self._small = 0  # epochs in a row that were small
        self._rests = 0  # small epochs that go as Spark jobs, after one that was refused
        self._lost_epoch = -1  # the last one that lost its lanes: its next attempts go without
        self._failures, self._not_before_s = 0, 0.0
        self._numbers = count()

    @property
    def lanes(self) -> int:
        """Number of resident lanes that are ready to run an epoch."""
        job = self._job
        return len(job.places) if job is not None and job.state == "ready" else 0

    @property
    def pids(self) -> dict[tuple[str, int], int]:
        """Executor and lane → process id on its machine, of lanes that are ready."""
        job = self._job
        if job is None or job.state != "ready":
            return {}
        return {job.places[n]: pid for n, pid in job.pids.items()}

    # -- epochs -----------------------------------------------------------------------------------

    def run(
        self, instruction: EpochInstruction, payloads: Mapping[int, Sequence[bytes]]
    ) -> list[LaneReport] | None:
        """Run a small epoch on the resident lanes, and return their reports.

        `payloads`: by lane number. ``None`` if the epoch must run as Spark jobs. Raises
        `AttemptLostError` if a lane was lost meanwhile.
        """
        self._small += 1
        if self._rests > 0:
            self._rests -= 1
            return None
        job = self._job_for(instruction)
        if job is None:
            return None
        try:
            reports = job.run(instruction, payloads, self._given_up)
        except LaneLostError as error:
            self._lost_epoch = instruction.epoch
            self._end_in_background(job, str(error), failed=True)
            raise AttemptLostError(f"a resident lane was lost: {error}") from error
        except BaseException:
            # The epoch is interrupted: answers that are under way will not be read.
            self._end_in_background(job, "an epoch was broken off", failed=False)
            raise
        if reports is None:
            self._rests = _RESTS_AFTER_REFUSAL
            return None
        self._failures = 0
        self.epochs += 1
        return reports

    def yield_cores(self) -> None:
        """End the resident lanes, to free their cores for an epoch with many rows."""
        self._small = 0
        self.end("an epoch has many rows")

    def _job_for(self, instruction: EpochInstruction) -> LaneJob | None:
        """Return a job whose lanes are ready for this epoch; start one if due.

        ``None``: the epoch has to run as Spark jobs.
        """
        if instruction.epoch == self._lost_epoch or self._small < _SMALL_IN_A_ROW:
            return None
        job = self._job
        if job is not None and not job.covers(instruction.places):
            self.end("executors or lanes have changed")
            job = None
        if job is None:
            job = self._start_job(instruction.places)
        if job is None or not (job.state == "ready" or job.wait_until_ready(self.waits_s)):
            return None
        return job

    # -- the job ----------------------------------------------------------------------------------

    def _start_job(self, places: Sequence[Place]) -> LaneJob | None:
        """Start a job of lanes at these places; ``None`` if closed, too early, or that fails."""
        if self._now_s() < self._not_before_s:
            return None
        try:
            with self._lock:
                if self._closed:
                    return None
                self._job = LaneJob(
                    places,
                    self._flow,
                    self._tasks(next(self._numbers)),
                    patience_s=self.patience_s,
                    on_ready=self._on_ready,
                    on_failed=self._on_failure,
                )
                return self._job
        except OSError as error:
            self._pause(f"the driver cannot listen for them: {error}")
            return None

    def _drop_ended(self, job: LaneJob) -> bool:
        """Forget a job that has ended; return whether it was the current one."""
        with self._lock:
            mine = job is self._job
            if mine:
                self._job = None
            return mine

    def _on_ready(self, job: LaneJob) -> None:
        """Announce that the lanes of a job are ready; called by the job's thread."""
        with self._lock:  # a job may be ready before `_start_job` has noted it
            mine = job is self._job
        if mine:
            self._announce(
                events.ResidentLanesStarted,
                lanes=len(job.places),
                took_ms=round(job.ready_after_ms, 1),
            )

    def _on_failure(self, job: LaneJob, reason: str) -> None:
        """Pause the start of lanes after a job has failed; called by the job's thread."""
        if self._drop_ended(job):
            self._pause(reason)

    def _end_in_background(self, job: LaneJob, reason: str, *, failed: bool) -> None:
        """End a job's lanes without waiting for them.

        `failed`: announce the reason as a failure.
        """
        mine = self._drop_ended(job)
        job.close_channels()
        threading.Thread(target=job.end, name="godwit-resident-end", daemon=True).start()
        if mine and failed:
            self._pause(reason)
        elif mine:
            self._announce(events.ResidentLanesEnded, reason=reason)

    def _pause(self, reason: str) -> None:
        """Announce a failure, and delay the next start of lanes, longer after each failure."""
        pause_s = min(_PAUSE_S * 2.0**self._failures, _PAUSE_AT_MOST_S)
        self._failures += 1
        self._not_before_s = self._now_s() + pause_s
        self._announce(events.ResidentLanesFailed, reason=reason, pause_s=pause_s)

    def end(self, reason: str) -> None:
        """End the Spark job of the lanes, if there is one, and wait for its end."""
        with self._lock:
            job, self._job = self._job, None
        if job is None:
            return
        ended: Any = job.end()
        text = reason if ended else f"{reason}; Spark's job goes on although it was cancelled"
        self._announce(events.ResidentLanesEnded, reason=text)

    def close(self) -> None:
        """End the Spark job of the lanes, and start no other one."""
        with self._lock:
            self._closed = True
        self.end("the query ends")
