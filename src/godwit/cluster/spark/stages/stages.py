"""One epoch as one chain of stages: source side, then an exchange and lanes per level.

What runs on executors is picklable and small: the flow travels once, as a broadcast; the epoch's
instruction travels with the stages, and so do the rows of an epoch that has few of them, which then
has no source side.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.traceback_utils import SCCallSiteSync

from godwit.cluster.spark.run.feeds import read_feeds
from godwit.cluster.spark.stages.exchange import exchange, on_executors, placed
from godwit.cluster.spark.stages.parcels import parted, report_parcel
from godwit.cluster.spark.stages.python_stage import PythonStage, fetch, python_rdd
from godwit.cluster.spark.stages.shipping import ShippedEpoch
from godwit.engine.lane.lane import run_lane, shipments
from godwit.engine.lane.wire import due_at, ship, ship_arrivals
from godwit.operators.windows.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from pyspark import SparkContext

    from godwit.cluster.spark.stages.shipping import Arrived, Program, ShippedProgram
    from godwit.engine.lane.messages import EpochInstruction, LaneReport
    from godwit.engine.lane.wire import Blob

__all__ = ["run_stages"]

_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 2**20


def run_stages(
    source: Any | Sequence[bytes] | None,
    program: ShippedProgram,
    instruction: EpochInstruction,
    spark: SparkContext,
) -> list[LaneReport]:
    """Run the stages of one epoch and return the lanes' reports.

    Parameters
    ----------
    source
        The epoch's source rows, as `feeds.streaming_dataframe` laid them out, in Arrow batches: an
        RDD of the JVM, or the batches themselves; ``None`` for an epoch without input.
    program
        The flow.
    instruction
        What the lanes are told.
    spark
        The context.
    """
    locations = [place.location for place in instruction.places]
    places = len(locations)

    arrived = _arrived(program, instruction, source) if isinstance(source, Sequence) else {}
    told = ShippedEpoch(instruction, arrived)

    def source_side(_partition: int, batches: Iterator[bytes]) -> Iterator[Blob]:
        yield from ship_source(program.get(), told.instruction, batches)

    exchanged = None
    if source is not None and not isinstance(source, Sequence):
        with _named(f"source side of epoch {instruction.epoch}", spark):
            exchanged = exchange(PythonStage(source, source_side), places, spark)

    def lanes_of(run: Callable[[int, list[bytes]], Iterable[Any]]) -> PythonStage:
        if exchanged is None:
            return on_executors(locations, lambda place: run(place, told.arrived(place)), spark)
        return placed(exchanged, locations, run, spark)

    levels = instruction.levels
    for level in range(1, levels):
        with _named(f"lanes of epoch {instruction.epoch}, level {level}", spark):
            exchanged = exchange(lanes_of(_run_level(program, told, level)), places, spark)
    with _named(f"lanes of epoch {instruction.epoch}, level {levels}", spark):
        reports = fetch(python_rdd(lanes_of(_run_last_level(program, told, levels)), spark), spark)
    return [pickle.loads(report) for report in reports]  # noqa: S301  our own executors'


@contextmanager
def _named(name: str, spark: SparkContext) -> Iterator[None]:
    """Let Spark's UI show what is made inside under a name, in place of a line of our code."""
    site = SCCallSiteSync(spark)  # type: ignore[no-untyped-call]
    site._call_site = f"godwit: {name}"  # noqa: SLF001  PySpark would put our frame there
    with site:
        yield


def _run_level(program: ShippedProgram, told: ShippedEpoch, level: int) -> Any:
    def run(place: int, parcels: list[bytes]) -> Iterator[Blob]:
        rows, reports = parted(parcels)
        due, later = due_at(level, rows)
        # The next exchange brings on what is for nobody of this level.
        yield from ((place, payload) for payload in later)
        yield from ((place, report_parcel(report)) for report in reports)
        report = yield from run_lane(program.get().lanes, told.instruction, level, place, due)
        yield place, report_parcel(report.dumps())

    return run


def _run_last_level(program: ShippedProgram, told: ShippedEpoch, level: int) -> Any:
    def run(place: int, parcels: list[bytes]) -> Iterator[bytes]:
        rows, reports = parted(parcels)
        yield from reports
        yield _ended(run_lane(program.get().lanes, told.instruction, level, place, rows)).dumps()

    return run


def _ended(lane: Generator[Blob, None, LaneReport]) -> LaneReport:
    """Run a lane that has nobody to send rows to."""
    try:
        next(lane)
    except StopIteration as end:
        report: LaneReport = end.value
        return report
    raise AssertionError("the last level has nobody to send rows to")


def _arrived(
    program: ShippedProgram, instruction: EpochInstruction, batches: Sequence[bytes]
) -> Arrived:
    """Do what the source side does, here, and what the exchange behind it does."""
    assert program.here is not None, "only the driver has rows without an exchange"
    arrived: dict[int, list[bytes]] = {}
    for place, payload in ship_source(program.here, instruction, batches):
        arrived.setdefault(place, []).append(payload)
    return arrived


def ship_source(
    program: Program, instruction: EpochInstruction, batches: Iterable[bytes]
) -> Iterator[Blob]:
    """Source side of one source partition: combine, split by lane."""
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    told = shipments(program.lanes, instruction)
    for number, table in enumerate(_chunks(program.schema, batches)):
        for given, columns, times in read_feeds(program.feeds, table):
            shipment = told[given.operator]
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
