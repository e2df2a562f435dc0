"""Lanes of one small epoch, started before the epoch's rows are chosen.

The problem: most of a small epoch is the start of its Spark job, and rows that arrive meanwhile
wait for the next epoch.  So the job is started first, as soon as a source has rows.  Its tasks
connect to the driver, as those of resident lanes do, and only then the sources are asked how far
the epoch reads.  The driver has the reports from its connections, and need not wait for the end of
the job either.

The invariants:

- *Lanes work one epoch and end with it.*  They hold no core while no epoch is at hand, or while
  epochs are held.
- *No epoch depends on them.*  Whatever they cannot work goes as Spark jobs: an epoch with more
  rows, at other places, or in which a lane refuses.  Where they do not come in time, since copies
  take the cores or executors cannot reach the driver, they are tried again after more and more
  epochs.
- *One query of a process at a time waits for its lanes.*  Two that each had a part of the cores
  would wait for each other.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, Final

from godwit.engine.cluster import AttemptLostError
from godwit.spark.resident.job import LaneJob, LaneLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport, Place
    from godwit.spark.resident.job import Tasks

_PAUSE: Final = 10
_MAX_PAUSE: Final = 1_000
"""Epochs that go as Spark jobs after a failure, and at most."""
_starting = threading.Lock()  # of all queries of this process


class EpochLanes:
    """Lanes for the next small epoch of a run; the epochs' thread calls all but `close`."""

    patience_s = 1.0
    """Time for which lanes are waited for before the epoch goes as Spark jobs."""

    idle_s = 2.0
    """Time for which lanes that are ready wait for their epoch.

    What the driver does meanwhile may wait for Spark jobs that need their cores, as when a source
    is asked how far it reaches."""

    def __init__(
        self,
        flow: Callable[[], LaneFlow],  # what lanes need of the flow, called in each; picklable
        tasks: Callable[[int], Tasks],  # makes those of a job, by its number
        *,
        given_up: Callable[[], str],  # see `LaneJob.send_work`
    ) -> None:
        self.epochs = 0  # that these lanes have worked
        self._flow, self._tasks, self._given_up = flow, tasks, given_up
        self._lock = threading.Lock()
        self._job: LaneJob | None = None  # whose lanes are ready
        self._expiry: threading.Timer | None = None  # ends them
        self._places: Sequence[Place] = ()  # of the last epoch
        self._failures = self._paused = 0
        self._closed = False
        self._numbers = count()

    def prepare(self) -> bool:
        """Start lanes on the executors of the last epoch, and wait; return whether they are ready.

        Nothing is started before an epoch has run, or for a while after a failure.
        """
        if self._paused or not self._places:
            return False
        if not _starting.acquire(blocking=False):
            return False
        try:
            job = LaneJob(
                self._places,
                self._flow,
                self._tasks(next(self._numbers)),
                patience_s=self.patience_s,
                on_ready=lambda _: None,
                on_failed=lambda *_: None,
            )
            ready = job.wait_until_ready(self.patience_s)
        except OSError:  # the driver cannot listen
            self._pause()
            return False
        finally:
            _starting.release()
        with self._lock:
            if ready and not self._closed:
                self._job = job
                self._expiry = threading.Timer(self.idle_s, self._expire, (job,))
                self._expiry.daemon = True
                self._expiry.start()
        if not ready or self._closed:
            self._give_up(job)
            return False
        return True

    def run(
        self, instruction: EpochInstruction, payloads: Mapping[int, Sequence[bytes]]
    ) -> list[LaneReport] | None:
        """Run a small epoch on the prepared lanes, which end then; return their reports.

        `payloads`: payloads by lane number. ``None`` if the epoch must run as Spark jobs. Raises
        `AttemptLostError` if a lane was lost meanwhile.
        """
        self._places, self._paused = instruction.places, max(self._paused - 1, 0)
        job = self._taken()
        if job is None:
            return None
        if not job.covers(instruction.places):
            job.close_channels()
            return None
        try:
            reports = job.run(instruction, payloads, self._given_up)
        except LaneLostError as error:
            self._give_up(job)
            raise AttemptLostError(f"a lane was lost: {error}") from error
        except BaseException:
            self._give_up(job)
            raise
        job.close_channels()  # its tasks end by themselves
        if reports is None:
            self._pause()
            return None
        self._failures, self.epochs = 0, self.epochs + 1
        return reports

    def release(self) -> None:
        """End the prepared lanes: no epoch begins now, or one with many rows needs their cores."""
        job = self._taken()
        if job is not None:
            job.close_channels()

    yield_cores = release

    def close(self) -> None:
        """End the lanes, and start no others."""
        with self._lock:
            self._closed = True
        self.release()

    def _taken(self) -> LaneJob | None:
        """Return the job whose lanes are ready, and clear it; ``None`` if there is none."""
        with self._lock:
            job, self._job = self._job, None
            expiry, self._expiry = self._expiry, None
        if expiry is not None:
            expiry.cancel()
        return job

    def _expire(self, job: LaneJob) -> None:
        """End lanes that have waited too long for their epoch, which runs as Spark jobs."""
        with self._lock:
            if self._job is not job:
                return
            self._job = self._expiry = None
        self._pause()
        job.close_channels()

    def _pause(self) -> None:
        """Start no lanes for some epochs, which run as Spark jobs; more after each failure."""
        self._paused = min(_PAUSE << self._failures, _MAX_PAUSE)
        self._failures = min(self._failures + 1, _MAX_PAUSE.bit_length())

    def _give_up(self, job: LaneJob) -> None:
        """End, in the background, a job whose lanes did not start or were lost."""
        self._pause()
        job.close_channels()
        threading.Thread(target=job.end, name="godwit-lanes-end", daemon=True).start()
