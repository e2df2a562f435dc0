"""One epoch as one chain of stages: source side, then an exchange and lanes per level.

What runs on executors is picklable and small: the flow travels once, as a broadcast; the epoch's
instruction travels with the stages, and so do the rows of an epoch that has few of them, which then
has no source side.  Each is unpacked once per Python process, which runs many lanes.

The lanes of all levels report to the driver, but an epoch is one Spark job, whose last stage alone
answers the driver.  So reports travel with the exchange, beside the rows, each to its lane's own
place: there is one of every lane however often Spark runs a stage.
"""

from __future__ import annotations

import pickle
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pyspark import TaskContext
from pyspark.traceback_utils import SCCallSiteSync

from godwit.engine.cluster import AttemptLostError
from godwit.engine.lane.lane import run_lane
from godwit.engine.lane.messages import InstructionParts, LaneReport
from godwit.engine.lane.wire import split_by_level
from godwit.model.log_lines import log_as
from godwit.spark.platform.worker import freeze_loaded_objects, retain_freed_memory
from godwit.spark.stages import pickling
from godwit.spark.stages.exchange import (
    PythonStage,
    exchange,
    fetch,
    on_executors,
    python_rdd,
    run_at_lanes,
    run_beside,
)
from godwit.spark.stages.local_parcels import open_stored, remove_earlier, store_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark import Broadcast, SparkContext

    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob
    from godwit.spark.resident.lanes import ResidentLanes
    from godwit.spark.stages.source_plans import Program

T = TypeVar("T")

_REPORT = 0xFF  # no payload of rows begins with it: see `godwit.engine.lane.wire`


def wrap_report(report: bytes) -> bytes:
    """Return a lane's report as a payload, which an exchange sends like rows."""
    return bytes([_REPORT]) + report


def separate_reports(parcels: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the payloads of rows, and the reports, among received payloads."""
    rows: list[bytes] = []
    reports: list[bytes] = []
    for parcel in parcels:
        if parcel[0] == _REPORT:
            reports.append(parcel[1:])
        else:
            rows.append(parcel)
    return rows, reports


class Shipped(Generic[T]):
    """A value on its way to executors, unpacked once per Python process and not once per task."""

    def __init__(self, kind: str, key: Any, data: bytes | Broadcast[bytes], here: T | None) -> None:
        self._kind, self._key, self._data = kind, key, data
        self.here = here  # the value, on the driver; ``None`` elsewhere

    def get(self) -> T:
        """Return the value in a task, unpacked once per Python process; it must not be changed."""
        unpacked = _unpacked.get(self._kind)
        if unpacked is None or unpacked[0] != self._key:
            _unpacked.pop(self._kind, None)
            data = self._data if isinstance(self._data, bytes) else self._data.value
            unpacked = _unpacked[self._kind] = (self._key, pickle.loads(data))  # noqa: S301  our own
        if self._kind == "program":
            retain_freed_memory()
            freeze_loaded_objects(self._key)
            log_as(unpacked[1].lanes.log)
        value: T = unpacked[1]
        return value

    def destroy(self) -> None:
        """Remove the broadcast value from the executors."""
        if not isinstance(self._data, bytes):
            self._data.destroy()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "here": None}


def ship_program(program: Program, run_id: str, spark: SparkContext) -> Shipped[Program]:
    """Broadcast a program to executors; the user's functions may be defined in ``__main__``."""
    return Shipped("program", run_id, spark.broadcast(pickling.dumps(program)), program)


def lanes_of(program: Shipped[Program]) -> LaneFlow:
    """Return the lanes' part of the broadcast program; called on an executor."""
    return program.get().lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRows:
    """Source rows of one epoch, by who reads them."""

    # few of them, as the source stage takes them: the driver does what that stage does
    here: Sequence[Any] = ()
    # what tasks read themselves: for each, a pickled list of items
    tasks: tuple[bytes, ...] = ()
    rdd: Any = None  # of the JVM, of byte arrays; ``None`` where there is none

    @property
    def is_here(self) -> bool:
        """True if the driver has all rows, so that no source stage is needed."""
        return self.rdd is None and not self.tasks

    def with_others(self, others: EpochRows) -> EpochRows:
        """Return these rows merged with rows that come after them; only one may have an RDD."""
        if self.is_here and others.is_here:
            return EpochRows(here=[*self.here, *others.here])
        # The driver has no part in the exchange that the rest needs.
        tasks = [
            task
            for rows in (self, others)
            for task in ((pickling.dumps(tuple(rows.here)),) if rows.here else rows.tasks)
        ]
        return EpochRows(tasks=tuple(tasks), rdd=self.rdd if others.rdd is None else others.rdd)


def ship_orders(orders: InstructionParts) -> Shipped[InstructionParts]:
    """Broadcast instruction and payloads of one attempt at an epoch to executors."""
    key = (orders.without_states.run_id, next(_attempts))
    return Shipped("orders", key, pickle.dumps(orders), orders)


_unpacked: dict[str, tuple[Any, Any]] = {}  # kind → key, value
_attempts = count()


def run_stages(
    source: EpochRows | None,  # ``None``: an epoch without input
    program: Shipped[Program],
    instruction: EpochInstruction,
    spark: SparkContext,
    resident: ResidentLanes | None = None,
    *,
    locate: Callable[[str], str | None],  # returns how Spark names an executor as a location
    jobs: Callable[[], AbstractContextManager[None]] = nullcontext,  # Spark's run inside
    by_files: bool = True,  # large payloads for the sender's own executor go by files
) -> list[LaneReport]:
    """Run the stages of one epoch, and return the lanes' reports.

    `resident`: lanes that wait for work, if any; they run an epoch whose rows are on the driver, or
    one without rows. `locate`: returns an executor as a location of Spark. `by_files`: large
    payloads for the sender's own executor go by files.
    """
    arrived: dict[int, list[bytes]] = {}
    if source is not None and source.is_here:  # the source side and its exchange, done here
        assert program.here is not None, "only the driver has rows without an exchange"
        ships = program.here.ship(instruction, source.here, 0)
        for place, payload in ships:
            arrived.setdefault(place, []).append(payload)
    if resident is not None:
        if source is None or source.is_here:
            reports = resident.run(instruction, arrived)
            if reports is not None:
                return reports
        else:
            resident.yield_cores()
    began_s = time.perf_counter()
    with jobs():
        reports = _run_jobs(
            source, arrived, program, instruction, spark, locate=locate, by_files=by_files
        )
    if resident is not None and arrived:
        resident.record_job(time.perf_counter() - began_s)
    return reports


def _run_jobs(
    source: EpochRows | None,
    arrived: Mapping[int, Sequence[bytes]],  # lane number → payloads of rows that are on the driver
    program: Shipped[Program],
    instruction: EpochInstruction,
    spark: SparkContext,
    *,
    locate: Callable[[str], str | None],
    by_files: bool,
) -> list[LaneReport]:
    """Run an epoch's stages as Spark jobs; return reports, or raise `FilesLostError`.

    See `run_stages`.
    """
    locations = [locate(executor) for executor, _ in instruction.places]
    places = len(locations)
    tasks = () if source is None else source.tasks
    orders = ship_orders(InstructionParts.of(instruction, arrived, tasks))
    send = store_local if by_files else _send_all

    def source_side(_partition: int, batches: Iterator[bytes]) -> Iterator[Blob]:
        """Run the source side on one partition of the source rows."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        routes = orders.get().without_states
        yield from send(program.get().ship(routes, batches, partition), routes)

    def read_splits(task: int) -> Iterator[Blob]:
        """Run the source side on the splits of one task."""
        epoch = orders.get()
        items = pickle.loads(epoch.tasks[task])  # noqa: S301  our own driver's
        routes = epoch.without_states
        yield from send(program.get().ship(routes, items, task), routes)

    exchanged = None
    if source is not None and not source.is_here:
        with _job_name(f"source side of epoch {instruction.epoch}", spark):
            if source.rdd is None:
                side = on_executors((None,) * len(tasks), read_splits, spark)
            elif tasks:
                side = run_beside(source.rdd, source_side, len(tasks), read_splits, spark)
            else:
                side = PythonStage(source.rdd, source_side)
            exchanged = exchange(side, places, spark)

    def at_places(run: Callable[[int, list[bytes]], Iterable[Any]]) -> PythonStage:
        """Build the stage that calls `run` once per lane task, on the lane's executor."""
        if exchanged is None:
            return on_executors(
                locations,
                lambda place: run(place, list(orders.get().payloads.get(place, ()))),
                spark,
            )
        return run_at_lanes(exchanged, locations, run, spark)

    levels = instruction.levels
    for level in range(1, levels):
        with _job_name(f"lanes of epoch {instruction.epoch}, level {level}", spark):
            exchanged = exchange(at_places(_run_level(program, orders, level)), places, spark)
    with _job_name(f"lanes of epoch {instruction.epoch}, level {levels}", spark):
        packed = fetch(
            python_rdd(at_places(_run_last_level(program, orders, levels)), spark), spark
        )
    if not all(packed):
        raise FilesLostError("a lane ran on an executor that does not have the files of its rows")
    return [LaneReport.loads(report) for report in packed]


class FilesLostError(AttemptLostError):
    """A lane ran where the files of its rows are not (see `store_local`)."""


def _send_all(blobs: Iterable[Blob], _instruction: EpochInstruction) -> Iterable[Blob]:
    """Return all payloads, to be sent by Spark's shuffle."""
    return blobs


@contextmanager
def _job_name(name: str, spark: SparkContext) -> Iterator[None]:
    """Context in which Spark's UI shows jobs under a name."""
    site = SCCallSiteSync(spark)  # type: ignore[no-untyped-call]
    site._call_site = f"godwit: {name}"  # noqa: SLF001  PySpark would put our frame there
    with site:
        yield


def _run_level(program: Shipped[Program], orders: Shipped[InstructionParts], level: int) -> Any:
    """Return the function that runs a lane task of a level before the last."""

    def run(place: int, parcels: list[bytes]) -> Iterator[Blob]:
        """Run a lane task, and yield payloads for later levels."""
        rows, reports = separate_reports(parcels)
        due, later = split_by_level(level, rows)
        # The next exchange forwards the rows of later levels.
        yield from ((place, payload) for payload in later)
        yield from ((place, wrap_report(report)) for report in reports)
        payloads = open_stored(due)
        if payloads is None:
            yield place, wrap_report(b"")
            return
        for_lane = orders.get().for_place(place)
        if level == 1:
            remove_earlier(for_lane)
        report = yield from run_lane(program.get().lanes, for_lane, level, place, payloads)
        yield place, wrap_report(report.dumps())

    return run


def _run_last_level(
    program: Shipped[Program], orders: Shipped[InstructionParts], level: int
) -> Any:
    """Return the function that runs a lane task of the last level."""
    run_level = _run_level(program, orders, level)

    def run(place: int, parcels: list[bytes]) -> Iterator[bytes]:
        """Run a lane task; yield its report, and reports of earlier levels."""
        for _, parcel in run_level(place, parcels):
            assert parcel[0] == _REPORT, "the last level has no receivers"
            yield parcel[1:]

    return run
