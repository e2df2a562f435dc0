"""Source rows: every stream of the flow as one streaming query, and its rows back per operator.

Several sources are one streaming query, so Spark's own offset log covers them all and one epoch
is one micro-batch of each.  A *feed* is a source after its DataFrame maps; operators that read the
same feed share its rows.  A feed selects just the columns its operators need (Parquet reads no
others).  Several feeds are tagged and unioned: columns are numbered slots shared by type, so a
union is as wide as its widest feed and not as the sum of them.  A feed stays on the driver, since
its maps may refer to DataFrames; executors get its inputs.

Rows come as Arrow batches, straight from the plan that makes them.  Where few are expected, Spark's
plan alone runs on the executors, under a limit, and the driver does what the source side does: all
rows of a micro-batch go this way, or, if there is a single one more, none.

A batch DataFrame, the rows of an initial state, comes to the driver partition by partition, in
bounded memory (`rows_of_dataframe`).
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from godwit.engine.cluster import BYTES_HERE
from godwit.engine.lane.lane_flow import source_feeds
from godwit.model.errors import InvalidInputError
from godwit.plan.maps import map_dataframe
from godwit.spark.platform.pyspark_versions import arrow_schema_of, spark_type_of
from godwit.spark.stages.exchange import fetch, jvm_classes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark import SparkContext

    from godwit.engine.initial_state import InitialRows
    from godwit.engine.lane.lane_flow import Feed, LaneInput
    from godwit.plan.compiled import CompiledFlow


_FEED = "__godwit_feed"


def feeds_of(flow: CompiledFlow) -> tuple[Feed, ...]:
    """Return the feeds (sources after maps) of DataFrames: by source, then as declared.

    Spark numbers the sources of a query in the order in which it visits them, and finds their
    offsets by these numbers. So the order must not depend on operators, which are added and
    removed.
    """
    feeds = (feed for feed in source_feeds(flow) if feed.source not in flow.own_sources)
    return tuple(sorted(feeds, key=lambda feed: feed.source))


def union_columns(feed: Feed) -> dict[str, str]:
    """Return a feed's column → its name in the union of all feeds: type, and number per type."""
    numbers: Counter[str] = Counter()
    slots = {}
    for column in feed.schema:
        of_type = str(column.type).replace(" ", "")
        slots[column.name] = f"{of_type}_{numbers[of_type]}"
        numbers[of_type] += 1
    return slots


def feed_frames(
    feeds: tuple[Feed, ...], sources: Mapping[str, DataFrame]
) -> list[tuple[str, DataFrame]]:
    """Return each feed's source, and its DataFrame after maps.

    If there are several feeds, a column has the feed's number.
    """
    types: dict[str, pa.DataType] = {}
    for feed in feeds:
        types.update(zip(union_columns(feed).values(), feed.schema.types, strict=True))
    selected = []
    for number, feed in enumerate(feeds):
        frame = sources[feed.source]
        frame = map_dataframe(feed.source, feed.maps, frame)
        filled = {
            slot: frame[_quoted(name)].alias(slot) for name, slot in union_columns(feed).items()
        }
        columns = [
            filled.get(slot, sf.lit(None).cast(spark_type_of(dtype)).alias(slot))
            for slot, dtype in types.items()
        ]
        if len(feeds) > 1:
            columns.append(sf.lit(number).alias(_FEED))
        selected.append((feed.source, frame.select(*columns)))
    return selected


def streaming_dataframe(frames: Sequence[tuple[str, DataFrame]]) -> DataFrame:
    """Return the union of all feeds as one streaming DataFrame."""
    return reduce(DataFrame.unionAll, (frame for _, frame in frames))


def _quoted(name: str) -> str:
    """Return a column name quoted for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def arrow_schema(dataframe: DataFrame) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark makes of a DataFrame."""
    conf = dataframe.sparkSession.conf
    large = conf.get("spark.sql.execution.arrow.useLargeVarTypes", "false") == "true"
    zone = str(conf.get("spark.sql.session.timeZone"))
    return arrow_schema_of(dataframe.schema, zone=zone, large=large)


def read_feeds(
    feeds: tuple[Feed, ...], table: pa.Table
) -> Iterator[tuple[LaneInput, pa.RecordBatch]]:
    """Yield the rows for each operator's input, from a table laid out by `streaming_dataframe`."""
    for number, feed in enumerate(feeds):
        rows = table
        if len(feeds) > 1:
            rows = table.filter(pc.equal(table[_FEED], number))
        if rows.num_rows == 0:
            continue
        rows = rows.combine_chunks()
        columns = [rows[slot].chunk(0) for slot in union_columns(feed).values()]
        yield from feed.inputs_from(pa.RecordBatch.from_arrays(columns, schema=feed.schema))


_ROWS_HERE = 10_000  # more that were not expected are read twice
_QUERY = "sql.streaming.queryId"
_EXECUTION = "spark.sql.execution.id"


class SourceRows:
    """Reads the rows of micro-batches as Arrow batches; those of small epochs on the driver.

    Spark hands ``foreachBatch`` the RDD of its plan, and would plan that again and copy every row
    once more.  The plan itself is one step back, at the query that runs; where it is not found,
    the longer way is taken.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        # how much the driver takes, and what it expects to be worth taking
        rows_at_most: int = _ROWS_HERE,
        bytes_at_most: int = BYTES_HERE,
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
        """Set the number of rows that the next epoch is expected to have."""
        self._rows_expected = rows

    def read(self, rows: DataFrame, number: int) -> Any:
        """Return a micro-batch's record batches, without schema: on the driver, or as an RDD."""
        few = self.fetch_few(rows, number)
        if few is not None:
            return few
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        plan = _plan_of(frame, number, rows.sparkSession.sparkContext)
        self.latest = frame.toArrowBatchRdd() if plan is None else frame.toArrowBatchRdd(plan)
        return self.latest

    def fetch_few(self, rows: DataFrame, number: int) -> list[bytes] | None:
        """Return a micro-batch's rows on the driver if few are expected.

        ``None`` if it has more.
        """
        if not self.few_expected:
            return None
        batches = self.fetch_limited(rows, number, self._rows_at_most + 1)
        if batches is None:
            return None
        num_rows = sum(
            pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema).num_rows
            for batch in batches
        )
        self._rows_expected = num_rows
        self._bytes_a_row = sum(map(len, batches)) / max(num_rows, 1)
        return None if num_rows > self._rows_at_most else batches

    def fetch_limited(self, rows: DataFrame, number: int, limit: int) -> list[bytes] | None:
        """Return up to `limit` rows per partition on the driver.

        ``None`` if that is not possible.
        """
        frame = rows._jdf  # noqa: SLF001  no public way gives bytes
        spark = rows.sparkSession.sparkContext
        plan = _plan_of(frame, number, spark)
        if plan is None:
            return None
        self.latest = frame.toArrowBatchRdd(jvm_classes(spark).local_limit(limit, plan))
        return fetch(self.latest, spark)


def _plan_of(frame: Any, epoch: int, spark: SparkContext) -> Any:
    """Return the physical plan of this thread's micro-batch; ``None`` if that is not certain."""
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


_BYTES = 4 << 20


def rows_of_dataframe(value: Any) -> InitialRows | None:
    """Return the rows of a batch DataFrame; ``None`` for values of other types.

    Raises `InvalidInputError` for a streaming DataFrame.
    """
    from godwit.engine.initial_state import InitialRows  # noqa: PLC0415  only the driver needs it

    if not (type(value).__module__.startswith("pyspark.") and hasattr(value, "mapInArrow")):
        return None
    if value.isStreaming:
        raise InvalidInputError(
            "The initial state is a streaming DataFrame.",
            remedy="Give a batch DataFrame, such as one from spark.read.",
        )

    def batches() -> Iterator[pa.RecordBatch]:
        """Yield the rows as they arrive from the executors, two partitions at a time."""
        packed = value.mapInArrow(_packed, "rows binary")
        for row in packed.toLocalIterator(prefetchPartitions=True):
            with pa.ipc.open_stream(row[0]) as stream:
                yield from stream

    return InitialRows(schema=arrow_schema(value), batches=batches)


def _packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield record batches as Arrow streams of a few megabytes, each in one binary value."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _BYTES:
            yield _stream_of(waiting)
            waiting, size = [], 0
    if waiting:
        yield _stream_of(waiting)


def _stream_of(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return one row with record batches as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()])], ["rows"])
