"""One Spark job whose tasks run resident lanes, from its start to its end, on the driver.

Spark owns the processes: it places the tasks, and reports how they end as the end of the job.  A
task runs some lanes of its executor, one after the other.  The driver listens for the tasks only
until all are connected, each on the executor that it was placed on; a task that Spark retries finds
no listener and ends.  A job is never repaired: if one task is lost, all of them are let go, and
another job is started.
"""

from __future__ import annotations

import copy
import pickle
import selectors
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.lane.wire import split_by_level
from godwit.model.errors import InvalidFlowError
from godwit.spark.platform.sessions import settings_of
from godwit.spark.resident.channel import ChannelError, accept, new_secret
from godwit.spark.resident.lane_task import Endpoint, LaneAnswer, Work, serve_lanes
from godwit.spark.stages.exchange import fetch, on_executors, python_rdd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark import SparkContext

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, Place
    from godwit.spark.resident.channel import Channel

_HANDSHAKE_S = 5.0
_FRAME_S = 10.0
_LOOK_S = 0.2
_WATCH_S = 0.5
_BYTES_ON = 32 * 2**20
"""Bytes that all lanes of a level together may send on by way of the driver."""
_POOL = "godwit-resident"  # with FAIR scheduling, a job that never ends weighs on no other pool


class LaneLostError(Exception):
    """A resident lane is gone, or was given up; its text says why."""


class LaneJob:
    """Lanes that stay at some places, as long as all of their tasks run."""

    def __init__(
        self,
        groups: Sequence[Sequence[Place]],  # the lanes of each task, all of one executor
        flow: Callable[[], LaneFlow],  # what lanes need of the flow, called in each; picklable
        tasks: SparkTasks,
        *,
        patience_s: float,  # how long the tasks are waited for
        on_ready: Callable[[LaneJob], None],
        on_failed: Callable[[LaneJob, str], None],  # not called once `end` was
        watch: Callable[[LaneJob], None],  # called now and then while the lanes are ready
    ) -> None:
        self.groups = tuple(tuple(group) for group in groups)
        self.places = tuple(place for group in self.groups for place in group)
        self._task_of = {place: n for n, group in enumerate(self.groups) for place in group}
        self._pids: dict[int, int] = {}  # task → process
        self.ready_after_ms = 0.0
        self._flow, self._tasks, self._patience_s = flow, tasks, patience_s
        self._on_ready, self._on_failed, self._watch = on_ready, on_failed, watch
        self._channels: dict[int, Channel] = {}
        self._lock = threading.Lock()
        self._ready, self._ended = threading.Event(), threading.Event()
        self._began_s, self._attempts = time.monotonic(), count()
        self._secret = new_secret()
        self._listener = tasks.listen()
        port = self._listener.getsockname()[1]
        self._endpoint = Endpoint(address=(tasks.host, port), secret=self._secret)
        self._job = threading.Thread(target=self._run_job, name="godwit-resident-job", daemon=True)
        self._job.start()
        threading.Thread(
            target=self._accept_and_watch, name="godwit-resident-lanes", daemon=True
        ).start()

    def __repr__(self) -> str:
        return f"<LaneJob of {len(self.places)} lanes: {self.state}>"

    @property
    def state(self) -> str:
        """State of the job: ``"starting"``, ``"ready"`` or ``"ended"``."""
        if self._ended.is_set():
            return "ended"
        return "ready" if self._ready.is_set() else "starting"

    @property
    def pids(self) -> dict[Place, int]:
        """Lane → process id on its machine; lanes of one task have the same."""
        return {place: self._pids[task] for place, task in self._task_of.items()}

    def covers(self, places: Sequence[Place]) -> bool:
        """Return whether the job has a lane at each of these places (executor and lane number)."""
        return {*places} <= {*self.places}

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until all tasks are connected or the job has ended; return whether they are."""
        deadline = time.monotonic() + timeout_s
        while self.state == "starting" and time.monotonic() < deadline:
            self._ready.wait(0.02)
        return self.state == "ready"

    # -- an epoch, on its thread ------------------------------------------------------------------

    def run(
        self,
        instruction: EpochInstruction,
        payloads: Mapping[int, Sequence[bytes]],  # lane number → payloads
        given_up: Callable[[], str],  # see `send_work`
    ) -> list[LaneReport] | None:
        """Run all levels of an epoch, and return the reports; ``None`` if a lane has refused.

        A lane refuses on an error, or too much output; the epoch has to run as Spark jobs then.
        Raises `LaneLostError` if a lane or the job is lost; the job has to be ended then.
        """
        attempt, parts = next(self._attempts), InstructionParts.of(instruction)
        places = instruction.places
        tasks = [self._task_of[place] for place in places]
        boxes: list[list[bytes]] = [list(payloads.get(index_, ())) for index_ in range(len(places))]
        reports: list[LaneReport] = []
        for level in range(1, instruction.levels + 1):
            next_boxes: list[list[bytes]] = [[] for _ in places]
            work: dict[int, list[Work]] = {}
            for index, box in enumerate(boxes):
                due, next_boxes[index] = split_by_level(level, box)
                work.setdefault(tasks[index], []).append(
                    Work(
                        attempt=attempt,
                        level=level,
                        place=index,
                        instruction=parts.for_executor(places[index][0]) if level == 1 else None,
                        payloads=due,
                        bytes_at_most=_BYTES_ON // len(places),
                    )
                )
            refused = False
            for task, answers in self.send_work(work, given_up):
                expected = [(work_.attempt, work_.level, work_.place) for work_ in work[task]]
                if (
                    answered := [
                        (answer_.attempt, answer_.level, answer_.place) for answer_ in answers
                    ]
                ) != expected:
                    raise LaneLostError(
                        f"task {task} of the lanes answered for {answered} (attempt, level and "
                        "lane) "
                        f"instead of {expected}"
                    )
                for answer in answers:
                    refused = refused or bool(answer.refusal)
                    for index, payload in answer.blobs:
                        next_boxes[index].append(payload)
                    if answer.report:
                        reports.append(LaneReport.loads(answer.report))
            if refused:
                return None
            boxes = next_boxes
        assert not any(boxes), "the last level has no receivers"
        return reports

    def serial_s(self, instruction: EpochInstruction, reports: Sequence[LaneReport]) -> float:
        """Return the seconds of the busiest task of an epoch, beyond those of the busiest lane."""
        lanes: dict[int, float] = defaultdict(float)
        tasks: dict[int, float] = defaultdict(float)
        for report in reports:
            took_s = report.took_ms.get("lane", 0.0) / 1e3
            lanes[report.place] += took_s
            tasks[self._task_of[instruction.places[report.place]]] += took_s
        return max(tasks.values(), default=0.0) - max(lanes.values(), default=0.0)

    def send_work(
        self, work: Mapping[int, Sequence[Work]], given_up: Callable[[], str]
    ) -> Iterator[tuple[int, Sequence[LaneAnswer]]]:
        """Send each task its lanes' work, and yield task and answers in order of arrival.

        `work`: task → work of its lanes. `given_up`: called while waiting; returns the reason to
        stop waiting, or an empty text to continue. Raises `LaneLostError` if a task or the job is
        lost, or with that reason; the job has to be ended then.
        """
        with self._lock:
            channels = {task: self._channels[task] for task in work if task in self._channels}
        if len(channels) < len(work) or self.state != "ready":
            raise LaneLostError("the job of the resident lanes has ended")
        with selectors.DefaultSelector() as selector:
            for task, channel in channels.items():
                try:
                    channel.check_silent()
                    channel.send(pickle.dumps(work[task]))
                    selector.register(channel, selectors.EVENT_READ, task)
                except (ChannelError, ValueError) as error:  # closed by another thread
                    raise self._task_lost(task, error) from error
            waiting = set(channels)
            while waiting:
                ready = selector.select(_LOOK_S)
                if not ready:
                    if reason := given_up():
                        raise LaneLostError(reason)
                    if self._ended.is_set():
                        raise LaneLostError("the job of the resident lanes has ended")
                for key, _ in ready:
                    task = key.data
                    try:
                        answers: Sequence[LaneAnswer] = pickle.loads(  # noqa: S301  ours
                            channels[task].receive()
                        )
                    except ChannelError as error:
                        raise self._task_lost(task, error) from error
                    if task not in waiting:
                        raise LaneLostError(f"task {task} of the lanes answered twice")
                    waiting.discard(task)
                    yield task, answers

    def _task_lost(self, task: int, error: Exception) -> LaneLostError:
        """Return the error that the connection to a task failed; it names the task's first lane."""
        executor, number = self.groups[task][0]
        return LaneLostError(f"lane {number} of executor {executor}: {error}")

    # -- its end ----------------------------------------------------------------------------------

    def close_channels(self) -> None:
        """Close all channels, which ends the lanes; returns at once."""
        with self._lock:
            self._ended.set()
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.close()

    def end(self, patience_s: float = 10.0) -> bool:
        """Stop the lanes and wait for the end of Spark's job; return whether it has ended.

        Lanes that do not end within half of `patience_s` seconds are killed, by Spark.
        """
        self.close_channels()
        if self._job is threading.current_thread():
            return True
        self._job.join(patience_s / 2)
        if self._job.is_alive():
            self._tasks.cancel()
            self._job.join(patience_s / 2)
        return not self._job.is_alive()

    # -- on threads of its own --------------------------------------------------------------------

    def _run_job(self) -> None:
        """Run the Spark job of the lanes to its end; the body of a thread."""
        endpoint, flow = self._endpoint, self._flow
        places = tuple(group[0] for group in self.groups)

        def lanes(task: int) -> Iterator[bytes]:
            """Run the resident lanes of a task: the body of the task."""
            return serve_lanes(endpoint, task, places[task], flow)

        try:
            self._tasks.run(lanes, places)
        except Exception as error:  # noqa: BLE001  whatever Spark says of its end
            self._fail(f"Spark's job has ended: {_first_line(error)}")
        else:
            self._fail("Spark's job has ended")

    def _accept_and_watch(self) -> None:
        """Accept the tasks' connections, and watch the job to its end; the body of a thread."""
        self._accept_tasks()
        with self._lock:
            if self._ended.is_set() or len(self._channels) < len(self.groups):
                return
            self.ready_after_ms = (time.monotonic() - self._began_s) * 1e3
        self._on_ready(self)  # before an epoch may use the lanes, and end them
        self._ready.set()
        while not self._ended.wait(_WATCH_S):
            try:
                self._watch(self)
            except Exception as error:  # noqa: BLE001  as Spark raises it where the context ends
                self._fail(_first_line(error))

    def _accept_tasks(self) -> None:
        """Accept the tasks' connections until all are connected, or the time-out has passed."""
        deadline = self._began_s + self._patience_s
        try:
            while len(self._channels) < len(self.groups) and not self._ended.is_set():
                if time.monotonic() > deadline:
                    missing = len(self.groups) - len(self._channels)
                    self._fail(
                        f"{missing} of {len(self.groups)} tasks did not connect within "
                        f"{self._patience_s:g} s: their executors may have no free core, or cannot "
                        f"reach the driver at {self._endpoint.address[0]}"
                    )
                    return
                self._listener.settimeout(_LOOK_S)
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                try:
                    self._accept_task(connection)
                except ChannelError:
                    connection.close()  # not one of our lanes
        except OSError as error:
            self._fail(f"the driver cannot listen for them ({error})")
        except Exception as error:  # noqa: BLE001  no thread ends in silence
            self._fail(_first_line(error))
        finally:
            self._listener.close()  # a task that Spark retries finds no listener

    def _accept_task(self, connection: socket.socket) -> None:
        """Accept a connection if it is of a task on its planned executor; raise for another."""
        channel, task = accept(
            connection, self._secret, handshake_s=_HANDSHAKE_S, timeout_s=_FRAME_S
        )
        executor, pid = pickle.loads(channel.receive())  # noqa: S301  it knows the secret
        if task >= len(self.groups):
            raise ChannelError("the job has no such task")
        planned, _ = self.groups[task][0]
        if executor != planned:
            channel.close()
            self._fail(
                f"Spark placed lanes of executor {planned} on {executor}, since no "
                "core there was free"
            )
            return
        with self._lock:
            if self._ended.is_set():
                unused: Channel | None = channel
            else:
                unused = self._channels.pop(task, None)  # of a task that was tried again
                self._channels[task], self._pids[task] = channel, pid
        if unused is not None:
            unused.close()

    def _fail(self, reason: str) -> None:
        """End the job because of a failure, unless it has ended already."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        self.close_channels()
        self._on_failed(self, reason)


_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.rpc.enabled",
)
_SPECULATION = "spark.speculation"


def check_settings(spark: SparkContext) -> None:
    """Raise `InvalidFlowError` if a setting of Spark rules out resident lanes.

    Their channels are authenticated, but not encrypted; and each of their tasks runs once.
    """
    conf = settings_of(spark)
    for setting in _ENCRYPTED:
        if is_on(conf.get(setting, "false")):
            raise InvalidFlowError(
                f"{setting} asks Spark to encrypt what it sends, and resident lanes would get "
                "their rows unencrypted.",
                remedy="Start without lanes=gw.Lanes(resident=True), or encrypt the network "
                "itself and leave the setting out.",
                setting=setting,
            )
    if is_on(conf.get(_SPECULATION, "false")):
        raise InvalidFlowError(
            f"{_SPECULATION} lets Spark run a task a second time, whose end would end a resident "
            "lane.",
            remedy="Start without lanes=gw.Lanes(resident=True), or leave the setting out.",
            setting=_SPECULATION,
        )


def is_on(setting: str | None) -> bool:
    """Return whether the value of a boolean Spark setting is true."""
    return (setting or "").lower() == "true"


class SparkTasks:
    """Tasks of jobs of Spark's."""

    def __init__(
        self,
        spark: SparkContext,
        *,
        group: str,
        description: str,
        locate: Callable[[str], str | None],  # returns how Spark names an executor as a location
    ) -> None:
        self._spark, self._group, self._description = spark, group, description
        self._locate = locate
        conf = settings_of(spark)
        self.host = _plain_host(conf.get("spark.driver.host", "")) or "127.0.0.1"
        self._bind = _plain_host(conf.get("spark.driver.bindAddress", "")) or self.host

    def of_job(self, number: int) -> SparkTasks:
        """Return these tasks with a job group of their own, by which job `number` is cancelled."""
        other = copy.copy(self)
        other._group = f"{self._group}-{number}"  # noqa: SLF001  our own
        return other

    def listen(self) -> socket.socket:
        """Open a socket at the address where Spark's driver listens."""
        family, _, _, _, address = socket.getaddrinfo(self._bind, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        return listener

    def run(self, lanes: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        """Call ``lanes(task)`` in a Spark task per place, on its executor if possible; wait."""
        self._spark.setLocalProperty("spark.scheduler.pool", _POOL)
        self._spark.setJobGroup(self._group, self._description)
        locations = [self._locate(executor) for executor, _ in places]
        stage = on_executors(locations, lanes, self._spark)
        fetch(python_rdd(stage, self._spark), self._spark)

    def waiting(self) -> int:
        """Return the number of tasks, of other jobs of the session, that wait for a slot.

        Spark's status shows a task as waiting for seconds after it has begun, unless another
        event of its stage follows: so the lanes' own tasks are left out.
        """
        tracker = self._spark.statusTracker()
        jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._group))
        own_stages = {stage for job in jobs if job is not None for stage in job.stageIds}
        other_stages = (
            number for number in tracker.getActiveStageIds() if number not in own_stages
        )
        stages = map(tracker.getStageInfo, other_stages)
        return sum(
            max(0, stage_.numTasks - stage_.numActiveTasks - stage_.numCompletedTasks)
            for stage_ in stages
            if stage_ is not None
        )

    def cancel(self) -> None:
        """Cancel the Spark job of the tasks."""
        # A context that has ended has ended the job too.
        with suppress(Exception):
            self._spark.cancelJobGroup(self._group)


def _plain_host(setting: str | None) -> str:
    """Return a host setting without the brackets of IPv6; empty if unset."""
    return (setting or "").strip("[]")


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip() or repr(error)).partition("\n")[0]
