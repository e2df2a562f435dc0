"""Source rows: every stream of the flow as one streaming query, and its rows back per operator.

Several sources are one streaming query, so Spark's own offset log covers them all and one epoch
is one micro-batch of each.  A *feed* is a source after its DataFrame maps; operators that read the
same feed share its rows.  A feed selects just the columns its operators need (Parquet reads no
others).  Several feeds are tagged and unioned: columns are numbered slots shared by type, so a
union is as wide as its widest feed and not as the sum of them.  A feed stays on the driver, since
its maps may refer to DataFrames; executors get its inputs.

Rows come as Arrow batches, straight from the plan that makes them.  Where few are expected, Spark's
plan alone runs on the executors, under a limit, and the driver does what the source side does: all
rows of a micro-batch go this way, or, if there is a single one more, none (decision 0020).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from godwit.cluster.spark.stages.exchange import fetch, jvm_classes
from godwit.engine.lane.lane import shipments
from godwit.engine.lane.wire import ship, ship_arrivals
from godwit.operators.windows.event_time import Arrivals
from godwit.plan.compiled import SourceInput
from godwit.plan.maps import map_dataframe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark import SparkContext

    from godwit.engine.lane.lane import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob
    from godwit.plan.compiled import CompiledFlow

__all__ = [
    "FeedInput",
    "FrameStage",
    "SourceFeed",
    "SourceRows",
    "feed_frames",
    "feeds_of",
    "read_feeds",
    "streaming_dataframe",
]

_FEED = "__godwit_feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedInput:
    """Columns that one operator reads from a feed."""

    operator: int  # index of the operator in the flow
    slots: tuple[str, ...]  # slots of its columns: key columns, then the others
    schema: pa.Schema  # their names and Arrow types
    # slot of the event time, at one of the inputs of a feed; ``None`` at the others
    time: str | None = None
    # number of the watermark that its event times move (`CompiledFlow.watermarks`)
    watermark: int = 0
    number: int = 0  # which of the operator's inputs it is


@dataclass(slots=True, kw_only=True)
class SourceFeed:
    """A source after its maps, and the operators that read it."""

    source: str  # name of the source
    maps: tuple[Any, ...]  # dataFrame maps, in order
    columns: dict[str, str] = field(default_factory=dict)  # column → slot
    types: dict[str, pa.DataType] = field(default_factory=dict)  # slot → Arrow type
    inputs: list[FeedInput] = field(default_factory=list)  # the operators


def feeds_of(flow: CompiledFlow) -> tuple[SourceFeed, ...]:
    """Find the feeds of DataFrames, by names of sources, then as their operators were declared.

    Spark numbers the sources of a query in the order it comes upon them, and finds their offsets by
    these numbers.  So the order must not follow the operators, which come and go.
    """
    feeds: list[SourceFeed] = []
    # As they were declared, whatever the physical plan: see `CompiledFlow.under`.
    declared = {operator: number for number, operator in enumerate(flow.actions)}
    watermarks = tuple(enumerate(flow.watermarks))
    index_of = {operator.name: index for index, operator in enumerate(flow.operators)}
    for source_input in sorted(
        flow.inputs, key=lambda source_input: declared[source_input.operator]
    ):
        if not isinstance(source_input, SourceInput) or source_input.source in flow.own_sources:
            continue
        feed = next(
            (f for f in feeds if f.source == source_input.source and f.maps == source_input.maps),
            None,
        )
        if feed is None:
            feed = SourceFeed(source=source_input.source, maps=source_input.maps)
            feeds.append(feed)
        for column in [
            *source_input.schema,
            *([] if source_input.time is None else [source_input.time]),
        ]:
            if column.name not in feed.columns:
                slot = _free_slot(column.type, feed.types)
                feed.columns[column.name] = slot
                feed.types[slot] = column.type
        feed.inputs.append(
            FeedInput(
                operator=index_of[source_input.operator],
                slots=tuple(feed.columns[name] for name in source_input.columns),
                schema=source_input.schema,
                time=None
                if source_input.time is None or feed.inputs
                else feed.columns[source_input.time.name],
                watermark=next(
                    n for n, names in watermarks if flow.watermark_of(source_input) in names
                ),
                number=source_input.number,
            )
        )
    return tuple(sorted(feeds, key=lambda feed: feed.source))


def _free_slot(dtype: pa.DataType, taken: Mapping[str, pa.DataType]) -> str:
    """Name a new slot for a column of a type."""
    number = 0
    while (slot := f"{dtype}_{number}".replace(" ", "")) in taken:
        number += 1
    return slot


def feed_frames(
    feeds: tuple[SourceFeed, ...], sources: Mapping[str, DataFrame]
) -> list[tuple[str, DataFrame]]:
    """Give the source of every feed, and its rows as slots (and a tag, where there are several)."""
    types: dict[str, pa.DataType] = {}
    for feed in feeds:
        types.update(feed.types)
    selected = []
    for number, feed in enumerate(feeds):
        frame = sources[feed.source]
        frame = map_dataframe(feed.source, feed.maps, frame)
        filled = {slot: frame[_quoted(name)].alias(slot) for name, slot in feed.columns.items()}
        columns = [
            filled.get(slot, sf.lit(None).cast(from_arrow_type(dtype)).alias(slot))
            for slot, dtype in types.items()
        ]
        if len(feeds) > 1:
            columns.append(sf.lit(number).alias(_FEED))
        selected.append((feed.source, frame.select(*columns)))
    return selected


def streaming_dataframe(frames: Sequence[tuple[str, DataFrame]]) -> DataFrame:
    """Make of all feeds one streaming DataFrame."""
    return reduce(DataFrame.unionAll, (frame for _, frame in frames))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def arrow_schema(dataframe: DataFrame) -> pa.Schema:
    """Arrow schema of the batches that Spark makes of `dataframe`."""
    conf = dataframe.sparkSession.conf
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    zone = conf.get("spark.sql.session.timeZone")
    return to_arrow_schema(dataframe.schema, timezone=zone, prefers_large_types=large)


def read_feeds(
    feeds: tuple[tuple[FeedInput, ...], ...], table: pa.Table
) -> Iterator[tuple[FeedInput, pa.RecordBatch, pa.Array | None]]:
    """Rows of each operator: its input, its columns under their own names, and event times.

    Event times come once for every feed that has them.

    feeds: Inputs of the operators that read each feed.
    table: Rows as `streaming_dataframe` laid them out.
    """
    for number, inputs in enumerate(feeds):
        rows = table
        if len(feeds) > 1:
            rows = table.filter(pc.equal(table[_FEED], number))
        if rows.num_rows == 0:
            continue
        rows = rows.combine_chunks()
        for feed_input in inputs:
            columns = [rows[slot].chunk(0) for slot in feed_input.slots]
            times = None if feed_input.time is None else rows[feed_input.time].chunk(0)
            yield feed_input, pa.RecordBatch.from_arrays(columns, schema=feed_input.schema), times


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStage:
    """The source side of rows that come as one streaming DataFrame."""

    feeds: tuple[tuple[FeedInput, ...], ...]  # how source rows are laid out: inputs of each feed
    schema: pa.Schema  # of the source rows

    def ship(
        self, lanes: LaneFlow, instruction: EpochInstruction, items: Iterable[Any], partition: int
    ) -> Iterator[Blob]:
        """See `SourceStage`; items are Arrow batches without their schema."""
        shipped = shipments(lanes, instruction)
        for number, table in enumerate(_chunks(self.schema, items)):
            for given, columns, times in read_feeds(self.feeds, table):
                shipment = shipped[given.operator]
                if times is not None:
                    found = Arrivals.of(given.watermark, times, shipment.time.latest(given.number))
                    yield from ship_arrivals(
                        shipment, found, (0, partition, number, 0), number=given.number
                    )
                yield from ship(shipment, columns, (0, partition, number), number=given.number)


_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 2**20


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


_QUERY = "sql.streaming.queryId"
_EXECUTION = "spark.sql.execution.id"


_ROWS_AT_MOST: Final = 10_000
_BYTES_AT_MOST: Final = 2**20


class SourceRows:
    """Reads the rows of micro-batches as Arrow batches; those of small epochs on the driver.

    Spark hands ``foreachBatch`` the RDD of its plan, and would plan that anew and copy every row
    once more.  The plan itself is one step back, at the query that runs; where it is not found,
    the longer way is taken.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        # how much the driver takes, and what it expects to be worth taking
        rows_at_most: int = _ROWS_AT_MOST,
        bytes_at_most: int = _BYTES_AT_MOST,
    ) -> None:
        self.latest: Any = None  # the RDD of the JVM that was last read; ``None`` before the first
        self._schema = schema
        self._rows_at_most, self._bytes_at_most = rows_at_most, bytes_at_most
        self._rows_expected: int | None = None
        self._bytes_a_row = 0.0

    @property
    def few_expected(self) -> bool:
        """True if the next epoch is likely to be small."""
        rows = self._rows_expected
        return (
            rows is not None
            and rows <= self._rows_at_most // 2
            and rows * self._bytes_a_row <= self._bytes_at_most
        )

    def expect(self, rows: int) -> None:
        """Expect the next epoch to have about as many rows as the last one had."""
        self._rows_expected = rows

    def read(self, rows: DataFrame, number: int) -> Any:
        """Return a micro-batch's record batches (without schema): here, or as an RDD of the JVM."""
        few = self.few(rows, number)
        if few is not None:
            return few
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        plan = _plan_of(frame, number, rows.sparkSession.sparkContext)
        self.latest = frame.toArrowBatchRdd() if plan is None else frame.toArrowBatchRdd(plan)
        return self.latest

    def few(self, rows: DataFrame, number: int) -> list[bytes] | None:
        """Bring the rows of a micro-batch here if few are expected; ``None`` if there are more."""
        if not self.few_expected:
            return None
        batches = self.limited(rows, number, self._rows_at_most + 1)
        if batches is None:
            return None
        num_rows = sum(
            pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema).num_rows
            for batch in batches
        )
        self._rows_expected = num_rows
        self._bytes_a_row = sum(map(len, batches)) / max(num_rows, 1)
        return None if num_rows > self._rows_at_most else batches

    def limited(self, rows: DataFrame, number: int, limit: int) -> list[bytes] | None:
        """Bring at most `limit` rows of each partition here; ``None`` if the plan is not found."""
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        spark = rows.sparkSession.sparkContext
        plan = _plan_of(frame, number, spark)
        if plan is None:
            return None
        self.latest = frame.toArrowBatchRdd(jvm_classes(spark).local_limit(limit, plan))
        return fetch(self.latest, spark)


def _plan_of(frame: Any, epoch: int, spark: SparkContext) -> Any:
    """Physical plan of the micro-batch that this thread is in; ``None`` if that is not certain."""
    query = spark.getLocalProperty(_QUERY)
    # Without an execution's settings in its properties, a task would not see the session's.
    if query is None or spark.getLocalProperty(_EXECUTION) is None:
        return None
    running = frame.sparkSession().sharedState().activeStreamingQueries()
    stream = running.get(jvm_classes(spark).uuid_of(query))
    execution = None if stream is None else stream.lastExecution()
    if execution is None or execution.currentBatchId() != epoch:
        return None
    return execution.executedPlan()
