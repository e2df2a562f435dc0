"""Lanes that stay between epochs: which epochs they work, and when their job is started and ended.

The problem: a Spark job of no work takes tens of milliseconds, most of a small epoch.  So one long
job has Python tasks that run the lanes, and the driver sends each its rows and instruction by a
socket, passes on what lanes send to lanes of the next level, and collects the reports.

The invariants:

- *An epoch never waits for a job.*  Whatever the resident lanes cannot work, or not now, goes as
  Spark jobs: while they start or cannot start, epochs with more rows than the driver takes, and
  those in which a lane refuses (an error of the user's, more rows between two levels than the
  driver passes on).
- *An attempt is the resident lanes' from its beginning to its end, or not theirs.*  If one is lost
  in the middle, the attempt is, and all lanes are let go with it: no answer to an aborted attempt
  can be taken for an answer to a later one, since its channel is closed.  Every answer names
  its attempt besides.
- *Slots are occupied for small epochs only.*  A large epoch has them all: the lanes end before it
  and start again once several epochs in a row were small.
- *Lanes that the system has chosen occupy slots only while they pay, and no other job waits.*  They
  start after `_CHOSEN_AFTER` small epochs within `_CHOSEN_WITHIN_S`, and end if epochs pause, or
  tasks of any job of the session keep waiting for slots.
- *Lanes that wait for each other pay only while they are faster.*  A task runs its lanes one after
  the other, a Spark job all at once: chosen lanes end if their epochs take longer than those did.
- *Spark's executors end without them.*  The job is ended before executors are given back, when its
  places are not today's, and with the query.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter, deque
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from godwit.engine.cluster import AttemptLostError
from godwit.model import events
from godwit.spark.resident.job import LaneJob, LaneLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport, Place
    from godwit.spark.resident.job import SparkTasks


_SMALL_IN_A_ROW: Final = 2
_CHOSEN_AFTER: Final = 10
_CHOSEN_WITHIN_S: Final = 10.0
"""Small epochs in a row, and the time within which they began, after which lanes are chosen."""
_IDLE_S: Final = 10.0
"""Time without an epoch after which chosen lanes end."""
_WAITING_LOOKS: Final = 4
"""Looks at the session, one after the other, that all find waiting tasks: chosen lanes end."""
_YIELD_S, _MAX_YIELD_S = 30.0, 600.0
"""Pause after that; twice as long if it comes soon after the last start."""
_SOON_S: Final = 60.0
_COMPARED: Final = 5
"""Last epochs whose median time is compared: by Spark jobs, and by chosen lanes."""
_SERIAL_S: Final = 0.05
"""Time that lanes of one task wait for each other from which on a Spark job may be faster."""
_RESTS_AFTER_REFUSAL = 10  # epochs
_PAUSE_S, _MAX_PAUSE_S = 1.0, 60.0


class ResidentLanes:
    """The resident lanes of a run; `run` and `yield_cores` are called by an epoch's thread."""

    patience_s = 30.0
    """Time for which lanes are waited for in the background, until their start has failed."""

    waits_s = 0.0
    """Test hook; 0 in production. How long an epoch waits for lanes that start."""

    def __init__(
        self,
        flow: Callable[[], LaneFlow],  # what lanes need of the flow, called in each; picklable
        tasks: Callable[[int], SparkTasks],  # makes those of a job, by its number
        *,
        slots: QuerySlots,
        chosen: bool,  # by the system, and not by the user
        announce: Callable[..., None],  # takes kind and values of an event
        # Called while an epoch's lanes work; returns why the epoch stops waiting for them, or
        # an empty text; raises the error that ends the epoch.
        given_up: Callable[[], str],
        on_start: Callable[[], None] = lambda: None,  # called when lanes are ready
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epochs = 0  # that were worked by resident lanes
        self.reason = "no epoch has run yet"  # why the last epoch was not; empty if it was
        self._flow, self._tasks, self._slots, self._chosen = flow, tasks, slots, chosen
        self._announce, self._given_up, self._now_s = announce, given_up, now_s
        self._on_start = on_start
        self._lock = threading.Lock()
        self._job: LaneJob | None = None
        self._waiting: Callable[[], int] = lambda: 0  # tasks of the session that wait for slots
        self._works = False  # an epoch is in the job's lanes
        self._to_end = ""  # why the job is to end once that epoch is over
        self._closed = False
        self._small = 0  # epochs in a row that were small
        self._began_s: deque[float] = deque(maxlen=_CHOSEN_AFTER)  # the last of them
        self._looks = 0  # in a row at which tasks waited
        self._yields = 0
        self._started_s = 0.0
        # seconds of the last small epochs, by Spark jobs and by the present lanes, and of waiting
        self._by_jobs_s: deque[float] = deque(maxlen=_COMPARED)
        self._by_lanes_s: deque[tuple[float, float]] = deque(maxlen=_COMPARED)
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
    def pids(self) -> dict[Place, int]:
        """Lane → process id on its machine, of lanes that are ready."""
        job = self._job
        return job.pids if job is not None and job.state == "ready" else {}

    # -- epochs -----------------------------------------------------------------------------------

    def run(
        self, instruction: EpochInstruction, payloads: Mapping[int, Sequence[bytes]]
    ) -> list[LaneReport] | None:
        """Run a small epoch on the resident lanes, and return their reports.

        `payloads`: by lane number. ``None`` if the epoch must run as Spark jobs. Raises
        `AttemptLostError` if a lane was lost meanwhile.
        """
        self._small += 1
        self._began_s.append(self._now_s())
        self._slots.record_epoch(large=False)
        if self._rests > 0:
            self._rests -= 1
            return None
        job = self._job_for(instruction)
        if job is None:
            return None
        began_s = self._now_s()
        try:
            reports = job.run(instruction, payloads, self._given_up)
        except LaneLostError as error:
            self._lost_epoch, self.reason = instruction.epoch, f"a lane was lost: {error}"
            self._end_in_background(job, str(error), failed=True)
            raise AttemptLostError(f"a resident lane was lost: {error}") from error
        except BaseException:
            # The epoch is interrupted: answers that are under way will not be read.
            self._end_in_background(job, "an epoch was aborted", failed=False)
            raise
        finally:
            self._works = False
        if reports is None:
            self._rests = _RESTS_AFTER_REFUSAL
            self.reason = "a lane has refused an epoch: an error, or many rows between operators"
            return None
        self._failures, self.reason = 0, ""
        self.epochs += 1
        if self._chosen and payloads:
            self._by_lanes_s.append((self._now_s() - began_s, job.serial_s(instruction, reports)))
            self._end_if_slower(job)
        return reports

    def record_job(self, took_s: float) -> None:
        """Record how long a small epoch with rows took that was run as Spark jobs."""
        self._by_jobs_s.append(took_s)

    def _end_if_slower(self, job: LaneJob) -> None:
        """End chosen lanes if they wait for each other, and Spark jobs were faster."""
        if min(len(self._by_lanes_s), len(self._by_jobs_s)) < _COMPARED:
            return
        took_s, serial_s = map(median, zip(*self._by_lanes_s, strict=True))
        if serial_s > _SERIAL_S and took_s > median(self._by_jobs_s):
            self._yield_slots(job, "lanes that run one after the other take longer than Spark jobs")

    def yield_cores(self) -> None:
        """End the resident lanes, to free their cores for an epoch with many rows."""
        self._slots.record_epoch(large=True)
        self._small, self.reason = 0, "the last epoch had many rows"
        self._began_s.clear()
        self.end("an epoch has many rows")

    def _job_for(self, instruction: EpochInstruction) -> LaneJob | None:
        """Return a job whose lanes are ready for this epoch; start one if due.

        ``None``: the epoch has to run as Spark jobs.
        """
        if instruction.epoch == self._lost_epoch:
            return None
        job = self._job
        if job is not None and (why := self._why_end(job, instruction.places)):
            self.end(why)
            job = None
        if job is None:
            job = self._start_job(instruction.places)
            if job is None:
                return None
        if not (job.state == "ready" or job.wait_until_ready(self.waits_s)):
            self.reason = "the lanes are starting"
            return None
        with self._lock:
            self._works = job is self._job
            return job if self._works else None

    def _why_end(self, job: LaneJob, places: Sequence[Place]) -> str:
        """Return why a job must end before an epoch at these places; empty if it need not."""
        if self._to_end:
            return self._to_end
        if not job.covers(places):
            return "executors or lanes have changed"
        if self._slots.has_changed(places, yields=self._chosen):
            return "other queries of the session take or free task slots"
        return ""

    # -- the job ----------------------------------------------------------------------------------

    def _start_job(self, places: Sequence[Place]) -> LaneJob | None:
        """Start a job of lanes at these places; ``None``, and `reason`, if it is not due."""
        now_s = self._now_s()
        if now_s < self._not_before_s:
            return None  # the reason is that of the pause
        if self._small < _SMALL_IN_A_ROW:
            return None
        if self._chosen and (
            len(self._began_s) < _CHOSEN_AFTER or self._began_s[0] < now_s - _CHOSEN_WITHIN_S
        ):
            self.reason = (
                f"fewer than {_CHOSEN_AFTER} small epochs in a row within {_CHOSEN_WITHIN_S:g} s"
            )
            return None
        try:
            with self._lock:
                if self._closed:
                    return None
                groups = self._slots.claim(places, yields=self._chosen)
                tasks = self._tasks(next(self._numbers))
                self._waiting, self._looks, self._to_end = tasks.waiting, 0, ""
                self._by_lanes_s.clear()
                self._job = LaneJob(
                    groups,
                    self._flow,
                    tasks,
                    patience_s=self.patience_s,
                    on_ready=self._on_ready,
                    on_failed=self._on_failure,
                    watch=self._watch if self._chosen else lambda _: None,
                )
                return self._job
        except SlotsTakenError as error:
            self.reason = str(error)
        except OSError as error:
            self._slots.free()
            self._pause(f"the driver cannot listen for them: {error}")
        return None

    def _drop_ended(self, job: LaneJob) -> bool:
        """Forget a job that has ended; return whether it was the current one."""
        with self._lock:
            mine = job is self._job
            if mine:
                self._job = None
                self._slots.free()
            return mine

    def _on_ready(self, job: LaneJob) -> None:
        """Announce that the lanes of a job are ready; called by the job's thread."""
        with self._lock:  # a job may be ready before `_start_job` has noted it
            mine = job is self._job
        if mine:
            self._started_s = self._now_s()
            self._on_start()
            self._announce(
                events.ResidentLanesStarted,
                lanes=len(job.places),
                took_ms=round(job.ready_after_ms, 1),
            )

    def _on_failure(self, job: LaneJob, reason: str) -> None:
        """Pause the start of lanes after a job has failed; called by the job's thread."""
        if self._drop_ended(job):
            self._pause(reason)

    def _watch(self, job: LaneJob) -> None:
        """End lanes that the system has chosen if they rest or others need their slots.

        Called by the job's thread.
        """
        now_s = self._now_s()
        self._looks = self._looks + 1 if self._waiting() else 0
        if self._looks >= _WAITING_LOOKS:
            self._yield_slots(job, "tasks of other jobs wait for task slots")
        elif now_s > self._slots.epoch_s + _IDLE_S:
            self._end_between_epochs(job, f"no epoch has begun for {_IDLE_S:g} s", 0.0)

    def _yield_slots(self, job: LaneJob, reason: str) -> None:
        """End chosen lanes, and start none for a while, longer if they have just started."""
        soon = self._now_s() < self._started_s + _SOON_S
        self._yields = self._yields + 1 if soon else 0
        pause_s = min(_YIELD_S * 2.0**self._yields, _MAX_YIELD_S)
        self._end_between_epochs(job, reason, pause_s)

    def _end_between_epochs(self, job: LaneJob, reason: str, pause_s: float) -> None:
        """End a job now, or before the next epoch if one is in its lanes.

        `pause_s`: time for which no other job is started.
        """
        with self._lock:
            if job is not self._job:
                return
            self._not_before_s = max(self._not_before_s, self._now_s() + pause_s)
            if self._works:
                self._to_end = reason
                return
        self._end_in_background(job, reason, failed=False)

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
            self.reason = reason
            self._announce(events.ResidentLanesEnded, reason=reason)

    def _pause(self, reason: str) -> None:
        """Announce a failure, and delay the next start of lanes, longer after each failure."""
        pause_s = min(_PAUSE_S * 2.0**self._failures, _MAX_PAUSE_S)
        self._failures, self.reason = self._failures + 1, reason
        self._not_before_s = self._now_s() + pause_s
        self._announce(events.ResidentLanesFailed, reason=reason, pause_s=pause_s)

    def end(self, reason: str) -> None:
        """End the Spark job of the lanes, if there is one, and wait for its end."""
        with self._lock:
            job, self._job = self._job, None
        if job is None:
            return
        ended: Any = job.end()
        self._slots.free()
        self.reason = reason
        text = reason if ended else f"{reason}; Spark's job continues although it was cancelled"
        self._announce(events.ResidentLanesEnded, reason=text)

    def close(self) -> None:
        """End the Spark job of the lanes, and start no other one."""
        with self._lock:
            self._closed = True
        self.end("the query ends")
        self._slots.leave()


# Now and then Python searches all objects of a process for reference cycles, while threads wait.
# A driver with PySpark, Arrow and pandas has hundreds of thousands of objects, nearly all of
# them permanent; a search takes 100 ms and more, several times as long as a small epoch. So from
# the first start of a query's resident lanes to the end of the query, older objects are left out of
# these searches.
_lock: Final = threading.Lock()
_queries: Final[set[str]] = set()  # that have resident lanes


def pause_collection(query: str) -> None:
    """Exclude present objects from garbage collection until `resume_collection` is called.

    The second call for a query changes nothing.
    """
    with _lock:
        if not _queries:
            gc.collect()  # unreachable cycles must not be frozen
            gc.freeze()
        _queries.add(query)


def resume_collection(query: str) -> None:
    """Collect garbage as usual, once every query that called `pause_collection` has called this."""
    with _lock:
        if query in _queries:
            _queries.discard(query)
            if not _queries:
                gc.unfreeze()


_SPARE: Final = 1
"""Slots of an executor that stay free for other tasks: reading, copying state, writing."""
RECENT_S: Final = 10.0
"""Time after its last epoch for which a query counts as one whose epochs run."""


Groups: TypeAlias = "list[list[Place]]"


class SlotsTakenError(Exception):
    """No slot is left for the resident lanes of a query; its text says why."""


class SlotShares:
    """The queries of a session that have resident lanes, or may have some.

    A resident lane occupies a slot also while it has nothing to do, and Spark gives a slot to the
    first job that asks. So the queries of a session, all in this process, agree here. Invariants:
    one slot of every executor stays free; queries whose epochs run now have equal shares of the
    others; and no query takes a slot that another one still occupies. A task may run several
    lanes, so a share needs no more than one slot.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queries: list[QuerySlots] = []

    def join(
        self,
        # executor → what its slots belong to (itself, or in local mode the one process), and their
        # number
        slots_of: Callable[[str], tuple[str, int]],
        now_s: Callable[[], float],
    ) -> QuerySlots:
        """Return the part of a query that starts."""
        query = QuerySlots(self, slots_of, now_s)
        with self.lock:
            self.queries.append(query)
        return query

    def leave(self, query: QuerySlots) -> None:
        """Remove a query that ends."""
        with self.lock:
            self.queries = [other for other in self.queries if other is not query]


class QuerySlots:
    """The part of one query; other queries read its attributes."""

    def __init__(
        self,
        shares: SlotShares,
        slots_of: Callable[[str], tuple[str, int]],
        now_s: Callable[[], float],
    ) -> None:
        self._shares, self._slots_of, self._now_s = shares, slots_of, now_s
        self.occupied: Counter[str] = Counter()  # pool of slots → tasks of the present job
        self.epoch_s = self.large_epoch_s = -RECENT_S  # when the last one began

    def record_epoch(self, *, large: bool) -> None:
        """Record that an epoch begins, and whether it has many rows."""
        self.epoch_s = now_s = self._now_s()
        if large:
            self.large_epoch_s = now_s

    def claim(self, places: Sequence[Place], *, yields: bool) -> Groups:
        """Return the lanes of each task for these places, whose slots are the query's now.

        `yields`: claim no slots while another query has epochs with many rows. Raises
        `SlotsTakenError` if the query's share of an executor is empty.
        """
        with self._shares.lock:
            groups: Groups = []
            for lanes, share in self._shares_of(places, yields=yields).values():
                count = min(len(lanes), share)
                groups += [lanes[n::count] for n in range(count)]
            self.occupied = Counter(self._slots_of(group[0][0])[0] for group in groups)
            return groups

    def has_changed(self, places: Sequence[Place], *, yields: bool) -> bool:
        """Return whether a claim for these places would get fewer slots, or twice as many."""
        with self._shares.lock:
            try:
                shares = self._shares_of(places, yields=yields)
            except SlotsTakenError:
                return True
            return any(
                not self.occupied[pool] <= share
                or 2 * self.occupied[pool] <= min(len(lanes), share)
                for pool, (lanes, share) in shares.items()
            )

    def free(self) -> None:
        """Free the slots: the query's tasks have ended."""
        self.occupied = Counter()

    def leave(self) -> None:
        """Free the slots at the end of the query."""
        self.free()
        self._shares.leave(self)

    def _shares_of(
        self, places: Sequence[Place], *, yields: bool
    ) -> dict[str, tuple[list[Place], int]]:
        """Return the lanes of each pool, and the slots that they may occupy. See `claim`."""
        since_s = self._now_s() - RECENT_S
        other_queries = [query for query in self._shares.queries if query is not self]
        if yields and any(other.large_epoch_s > since_s for other in other_queries):
            raise SlotsTakenError("another query of the session has epochs with many rows")
        pools: dict[str, tuple[list[Place], int]] = {}
        for place in places:
            pool, slots = self._slots_of(place[0])
            pools.setdefault(pool, ([], slots))[0].append(place)
        shares: dict[str, tuple[list[Place], int]] = {}
        for pool, (lanes, slots) in pools.items():
            if slots <= _SPARE:
                raise SlotsTakenError(
                    f"executor {lanes[0][0]} has {slots} task slot, and one is to stay free"
                )
            sharing = [
                sharing_query
                for sharing_query in other_queries
                if sharing_query.epoch_s > since_s or sharing_query.occupied[pool]
            ]
            share = (slots - _SPARE) // (len(sharing) + 1)
            free = slots - _SPARE - sum(sharing_query.occupied[pool] for sharing_query in sharing)
            shares[pool] = (lanes, min(share, free))
            if shares[pool][1] < 1:
                raise SlotsTakenError(
                    f"{len(sharing) + 1} queries share {slots} task slots of executor "
                    f"{lanes[0][0]}, one of which stays free"
                )
        return shares


def shares_of(session: str) -> SlotShares:
    """Return the shares of a session's slots, by the id of its Spark application."""
    return _sessions.setdefault(session, SlotShares())


_sessions: Final[dict[str, SlotShares]] = {}
