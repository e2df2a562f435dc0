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
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.traceback_utils import SCCallSiteSync

from godwit.cluster.spark.platform.worker import freeze_loaded_objects
from godwit.cluster.spark.stages import pickling
from godwit.cluster.spark.stages.exchange import (
    PythonStage,
    exchange,
    fetch,
    on_executors,
    placed,
    python_rdd,
)
from godwit.cluster.spark.stages.source_rows import read_feeds
from godwit.engine.lane.lane import run_lane, shipments
from godwit.engine.lane.wire import due_at, ship, ship_arrivals
from godwit.operators.windows.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from pyspark import Broadcast, SparkContext

    from godwit.cluster.spark.stages.source_rows import FeedInput
    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.wire import Blob

__all__ = [
    "Program",
    "Shipped",
    "parted",
    "report_parcel",
    "run_stages",
    "ship_orders",
    "ship_program",
]

T = TypeVar("T")

_REPORT = 0xFF  # no payload of rows begins with it: see `godwit.engine.lane.wire`


def report_parcel(report: bytes) -> bytes:
    """Make of a report something that an exchange carries."""
    return bytes([_REPORT]) + report


def parted(parcels: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Part what an exchange brought into payloads of rows, and reports."""
    rows: list[bytes] = []
    reports: list[bytes] = []
    for parcel in parcels:
        if parcel[0] == _REPORT:
            reports.append(parcel[1:])
        else:
            rows.append(parcel)
    return rows, reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The part of a flow that executors need."""

    feeds: tuple[tuple[FeedInput, ...], ...]  # how source rows are laid out: inputs of each feed
    lanes: LaneFlow
    schema: pa.Schema  # of the source rows


class Shipped(Generic[T]):
    """A value on its way to executors, unpacked once per Python process and not once per task."""

    def __init__(self, kind: str, key: Any, data: bytes | Broadcast[bytes], here: T | None) -> None:
        self._kind, self._key, self._data = kind, key, data
        self.here = here  # the value, on the driver; ``None`` elsewhere

    def get(self) -> T:
        """Return the value in a task; nobody may change it.  One of each kind is remembered."""
        known = _unpacked.get(self._kind)
        if known is None or known[0] != self._key:
            _unpacked.pop(self._kind, None)
            data = self._data if isinstance(self._data, bytes) else self._data.value
            known = _unpacked[self._kind] = (self._key, pickle.loads(data))  # noqa: S301  our own
        if self._kind == "program":
            freeze_loaded_objects(self._key)
        value: T = known[1]
        return value

    def destroy(self) -> None:
        """Remove what was broadcast from the executors."""
        if not isinstance(self._data, bytes):
            self._data.destroy()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "here": None}


def ship_program(program: Program, run_id: str, spark: SparkContext) -> Shipped[Program]:
    """Broadcast a program; functions and classes of the user may live in ``__main__``."""
    return Shipped("program", run_id, spark.broadcast(pickling.dumps(program)), program)


Orders: TypeAlias = "tuple[EpochInstruction, Mapping[int, Sequence[bytes]]]"
"""An epoch's instruction, and payloads that come with it in place of an exchange: place → them."""


def ship_orders(orders: Orders) -> Shipped[Orders]:
    """Pack the orders of one attempt at an epoch."""
    key = (orders[0].run_id, next(_attempts))
    return Shipped("orders", key, pickle.dumps(orders), orders)


_unpacked: dict[str, tuple[Any, Any]] = {}  # kind → key, value
_attempts = count()

_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 2**20


def run_stages(
    source: Any | Sequence[bytes] | None,
    program: Shipped[Program],
    instruction: EpochInstruction,
    spark: SparkContext,
) -> list[LaneReport]:
    """Run the stages of one epoch and return the lanes' reports.

    `source` is the epoch's rows, as `streaming_dataframe` laid them out, in Arrow batches: an RDD
    of the JVM, or the batches themselves; ``None`` for an epoch without input.
    """
    locations = [place.location for place in instruction.places]
    places = len(locations)

    arrived: dict[int, list[bytes]] = {}
    if isinstance(source, Sequence):  # the source side and its exchange, done here
        assert program.here is not None, "only the driver has rows without an exchange"
        for place, payload in ship_source(program.here, instruction, source):
            arrived.setdefault(place, []).append(payload)
    orders = ship_orders((instruction, arrived))

    def source_side(_partition: int, batches: Iterator[bytes]) -> Iterator[Blob]:
        yield from ship_source(program.get(), orders.get()[0], batches)

    exchanged = None
    if source is not None and not isinstance(source, Sequence):
        with _named(f"source side of epoch {instruction.epoch}", spark):
            exchanged = exchange(PythonStage(source, source_side), places, spark)

    def lanes_of(run: Callable[[int, list[bytes]], Iterable[Any]]) -> PythonStage:
        if exchanged is None:
            return on_executors(
                locations, lambda place: run(place, list(orders.get()[1].get(place, ()))), spark
            )
        return placed(exchanged, locations, run, spark)

    levels = instruction.levels
    for level in range(1, levels):
        with _named(f"lanes of epoch {instruction.epoch}, level {level}", spark):
            exchanged = exchange(lanes_of(_run_level(program, orders, level)), places, spark)
    with _named(f"lanes of epoch {instruction.epoch}, level {levels}", spark):
        reports = fetch(
            python_rdd(lanes_of(_run_last_level(program, orders, levels)), spark), spark
        )
    return [pickle.loads(report) for report in reports]  # noqa: S301  our own executors'


@contextmanager
def _named(name: str, spark: SparkContext) -> Iterator[None]:
    """Let Spark's UI show what is made inside under a name, in place of a line of our code."""
    site = SCCallSiteSync(spark)  # type: ignore[no-untyped-call]
    site._call_site = f"godwit: {name}"  # noqa: SLF001  PySpark would put our frame there
    with site:
        yield


def _run_level(program: Shipped[Program], orders: Shipped[Orders], level: int) -> Any:
    def run(place: int, parcels: list[bytes]) -> Iterator[Blob]:
        rows, reports = parted(parcels)
        due, later = due_at(level, rows)
        # The next exchange brings on what is for nobody of this level.
        yield from ((place, payload) for payload in later)
        yield from ((place, report_parcel(report)) for report in reports)
        report = yield from run_lane(program.get().lanes, orders.get()[0], level, place, due)
        yield place, report_parcel(report.dumps())

    return run


def _run_last_level(program: Shipped[Program], orders: Shipped[Orders], level: int) -> Any:
    def run(place: int, parcels: list[bytes]) -> Iterator[bytes]:
        rows, reports = parted(parcels)
        yield from reports
        yield _ended(run_lane(program.get().lanes, orders.get()[0], level, place, rows)).dumps()

    return run


def _ended(lane: Generator[Blob, None, LaneReport]) -> LaneReport:
    """Run a lane that has nobody to send rows to."""
    try:
        next(lane)
    except StopIteration as end:
        report: LaneReport = end.value
        return report
    raise AssertionError("the last level has nobody to send rows to")


def ship_source(
    program: Program, instruction: EpochInstruction, batches: Iterable[bytes]
) -> Iterator[Blob]:
    """Source side of one source partition: combine, split by lane."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    shipped = shipments(program.lanes, instruction)
    for number, table in enumerate(_chunks(program.schema, batches)):
        for given, columns, times in read_feeds(program.feeds, table):
            shipment = shipped[given.operator]
            if times is not None:
                found = Arrivals.of(given.watermark, times, shipment.time.latest(given.number))
                yield from ship_arrivals(
                    shipment, found, (0, partition, number, 0), number=given.number
                )
            yield from ship(shipment, columns, (0, partition, number), number=given.number)


def _chunks(schema: pa.Schema, batches: Iterable[bytes]) -> Iterator[pa.Table]:
    """Batches gathered into tables large enough to combine well and small enough to hold."""
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for data in batches:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + len(data)
        if rows >= _MAX_ROWS or size >= _MAX_BYTES:
            yield pa.Table.from_batches(gathered, schema)
            gathered, rows, size = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered, schema)
