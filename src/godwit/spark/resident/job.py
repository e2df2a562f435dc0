"""One Spark job whose tasks are resident lanes, from its start to its end, on the driver.

Spark owns the processes: it places the tasks, and what becomes of them it tells here, as the end
of the job.  The driver listens for the lanes only until all of them are there, each on the executor
that it was placed on; a task that Spark retries finds no listener and ends.  A job is never
repaired: if one lane is lost, all of them are let go, and another job is started.
"""

from __future__ import annotations

import copy
import pickle
import selectors
import socket
import threading
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Protocol

from godwit.engine.lane.instruction_parts import InstructionParts
from godwit.engine.lane.messages import LaneReport
from godwit.engine.lane.wire import split_by_level
from godwit.model.errors import InvalidFlowError
from godwit.spark.resident.channel import ChannelError, accept, new_secret
from godwit.spark.resident.lane_task import Endpoint, LaneAnswer, Work, serve_lane
from godwit.spark.stages.exchange import fetch, on_executors, python_rdd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark import SparkContext

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, Place
    from godwit.runtime.threads import DaemonPool
    from godwit.spark.resident.channel import Channel

_HANDSHAKE_S = 5.0
_FRAME_S = 10.0
_LOOK_S = 0.2
_BYTES_ON = 32 * 2**20
"""Bytes that all lanes of a level together may send on by way of the driver."""
_POOL = "godwit-resident"  # with FAIR scheduling, a job that never ends weighs on no other pool


class LaneLostError(Exception):
    """A resident lane is gone, or was given up; its text says why."""


class Tasks(Protocol):
    """The tasks of one job of resident lanes, wherever they run."""

    host: str  # by which they reach the driver

    def listen(self) -> socket.socket:
        """Open a socket on the driver, at any free port, for connections from the tasks."""

    def run(self, lane: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        """Call ``lane(number)`` in a task for each place (executor and lane); wait for all."""

    def cancel(self) -> None:
        """Kill the tasks of the job."""


class LaneJob:
    """Lanes that stay at some places, as long as all of them are there."""

    def __init__(
        self,
        places: Sequence[Place],
        flow: Callable[[], LaneFlow],  # what lanes need of the flow, called in each; picklable
        tasks: Tasks,
        *,
        patience_s: float,  # how long the lanes are waited for
        on_ready: Callable[[LaneJob], None],
        on_failed: Callable[[LaneJob, str], None],  # not called once `end` was
    ) -> None:
        self.places = tuple(places)
        self.lane_of = {place: n for n, place in enumerate(places)}
        self.pids: dict[int, int] = {}  # lane → process
        self.ready_after_ms = 0.0
        self._flow, self._tasks, self._patience_s = flow, tasks, patience_s
        self._on_ready, self._on_failed = on_ready, on_failed
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
            target=self._accept_lanes, name="godwit-resident-lanes", daemon=True
        ).start()

    def __repr__(self) -> str:
        return f"<LaneJob of {len(self.places)} lanes: {self.state}>"

    @property
    def state(self) -> str:
        """State of the job: ``"starting"``, ``"ready"`` or ``"ended"``."""
        if self._ended.is_set():
            return "ended"
        return "ready" if self._ready.is_set() else "starting"

    def covers(self, places: Sequence[Place]) -> bool:
        """Return whether the job has a lane at each of these places (executor and lane number)."""
        return {*places} <= {*self.places}

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until all lanes are connected or the job has ended; return whether they are."""
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
        lanes = [self.lane_of[place] for place in places]
        boxes: list[list[bytes]] = [list(payloads.get(i, ())) for i in range(len(places))]
        reports: list[LaneReport] = []
        for level in range(1, instruction.levels + 1):
            later: list[list[bytes]] = [[] for _ in places]
            work: dict[int, bytes] = {}
            for index, box in enumerate(boxes):
                due, later[index] = split_by_level(level, box)
                work[lanes[index]] = pickle.dumps(
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
            for lane, answer in self.send_work(work, given_up):
                if (answer.attempt, answer.level) != (attempt, level):
                    raise LaneLostError(
                        f"lane {lane} answered level {answer.level} of attempt {answer.attempt}, "
                        f"and was asked for level {level} of attempt {attempt}"
                    )
                refused = refused or bool(answer.refusal)
                for index, payload in answer.blobs:
                    later[index].append(payload)
                if answer.report:
                    reports.append(LaneReport.loads(answer.report))
            if refused:
                return None
            boxes = later
        assert not any(boxes), "the last level has no receivers"
        return reports

    def send_work(
        self, work: Mapping[int, bytes], given_up: Callable[[], str]
    ) -> Iterator[tuple[int, LaneAnswer]]:
        """Send each lane its frame, and yield lane number and answer in order of arrival.

        `work`: lane number → frame. `given_up`: called while waiting; returns the reason to stop
        waiting, or an empty text to go on. Raises `LaneLostError` if a lane or the job is lost, or
        with that reason; the job has to be ended then.
        """
        with self._lock:
            channels = {lane: self._channels[lane] for lane in work if lane in self._channels}
        if len(channels) < len(work) or self.state != "ready":
            raise LaneLostError("the job of the resident lanes has ended")
        with selectors.DefaultSelector() as selector:
            for lane, channel in channels.items():
                try:
                    channel.check_silent()
                    channel.send(work[lane])
                    selector.register(channel, selectors.EVENT_READ, lane)
                except (ChannelError, ValueError) as error:  # closed by another thread
                    raise self._lane_lost(lane, error) from error
            waiting = set(channels)
            while waiting:
                ready = selector.select(_LOOK_S)
                if not ready:
                    if reason := given_up():
                        raise LaneLostError(reason)
                    if self._ended.is_set():
                        raise LaneLostError("the job of the resident lanes has ended")
                for key, _ in ready:
                    lane = key.data
                    try:
                        answer: LaneAnswer = pickle.loads(  # noqa: S301  ours
                            channels[lane].receive()
                        )
                    except ChannelError as error:
                        raise self._lane_lost(lane, error) from error
                    if lane not in waiting:
                        raise LaneLostError(f"lane {lane} answered twice")
                    waiting.discard(lane)
                    yield lane, answer

    def _lane_lost(self, lane: int, error: Exception) -> LaneLostError:
        """Return the error that the connection to lane number `lane` failed."""
        executor, number = self.places[lane]
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
        endpoint, places, flow = self._endpoint, self.places, self._flow

        def lane(number: int) -> Iterator[bytes]:
            """Run resident lane `number`: the body of a task."""
            return serve_lane(endpoint, number, places[number], flow)

        try:
            self._tasks.run(lane, places)
        except Exception as error:  # noqa: BLE001  whatever Spark says of its end
            self._fail(f"Spark's job has ended: {_first_line(error)}")
        else:
            self._fail("Spark's job has ended")

    def _accept_lanes(self) -> None:
        """Accept the lanes' connections until all are connected, or the time-out has passed."""
        deadline = self._began_s + self._patience_s
        try:
            while len(self._channels) < len(self.places) and not self._ended.is_set():
                if time.monotonic() > deadline:
                    missing = len(self.places) - len(self._channels)
                    self._fail(
                        f"{missing} of {len(self.places)} did not come within "
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
                    self._accept_lane(connection)
                except ChannelError:
                    connection.close()  # not one of our lanes
        except OSError as error:
            self._fail(f"the driver cannot listen for them ({error})")
        except Exception as error:  # noqa: BLE001  no thread ends in silence
            self._fail(_first_line(error))
        finally:
            self._listener.close()  # a task that Spark retries finds no listener
        with self._lock:
            if self._ended.is_set() or len(self._channels) < len(self.places):
                return
            self.ready_after_ms = (time.monotonic() - self._began_s) * 1e3
        self._on_ready(self)  # before an epoch may use the lanes, and end them
        self._ready.set()

    def _accept_lane(self, connection: socket.socket) -> None:
        """Accept a connection if it is of a lane on its planned executor; raise for another."""
        channel, lane = accept(
            connection, self._secret, handshake_s=_HANDSHAKE_S, timeout_s=_FRAME_S
        )
        executor, pid = pickle.loads(channel.receive())  # noqa: S301  it knows the secret
        if lane >= len(self.places):
            raise ChannelError("there is no such lane")
        planned, _ = self.places[lane]
        if executor != planned:
            channel.close()
            self._fail(
                f"Spark placed a lane of executor {planned} on {executor}, since no "
                "core there was free"
            )
            return
        with self._lock:
            if self._ended.is_set():
                unused: Channel | None = channel
            else:
                unused = self._channels.pop(lane, None)  # of a task that was tried again
                self._channels[lane], self.pids[lane] = channel, pid
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


def check_unencrypted_network(spark: SparkContext) -> None:
    """Raise `InvalidFlowError` if Spark is set to encrypt its network traffic.

    The channels of resident lanes are authenticated, but not encrypted.
    """
    setting = encrypting_setting(spark)
    if setting is not None:
        raise InvalidFlowError(
            f"{setting} asks Spark to encrypt what it sends, and resident lanes would get "
            "their rows unencrypted.",
            remedy="Start without lanes=gw.Lanes(resident=True), or encrypt the network "
            "itself and leave the setting out.",
            setting=setting,
        )


def encrypting_setting(spark: SparkContext) -> str | None:
    """Return the setting that makes Spark encrypt its network traffic.

    ``None`` if there is none.
    """
    conf = spark.getConf()
    return next((name for name in _ENCRYPTED if is_on(conf.get(name, "false"))), None)


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
        # that wait for the jobs; ``None``: the calling thread does. A new thread costs a new
        # connection to the JVM.
        threads: DaemonPool | None = None,
    ) -> None:
        self._spark, self._group, self._description = spark, group, description
        self._locate, self._threads = locate, threads
        conf = spark.getConf()
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

    def run(self, lane: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        """Call ``lane(number)`` in a Spark task per place, on its executor if possible; wait."""
        if self._threads is None:
            self._run(lane, places)
        else:
            self._threads.submit(self._run, lane, places).result()

    def _run(self, lane: Callable[[int], Iterator[bytes]], places: Sequence[Place]) -> None:
        """Run the tasks as a Spark job of this thread."""
        self._spark.setLocalProperty("spark.scheduler.pool", _POOL)
        self._spark.setJobGroup(self._group, self._description)
        locations = [self._locate(executor) for executor, _ in places]
        stage = on_executors(locations, lane, self._spark)
        fetch(python_rdd(stage, self._spark), self._spark)

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
