"""Sources: every stream of the flow as one streaming query, and its rows back per operator.

Several sources are one streaming query, so Spark's own offset log covers them all and one epoch
is one micro-batch of each.  A *feed* is a source after its DataFrame maps; operators that read the
same feed share its rows.  A feed selects just the columns its operators need (Parquet reads no
others).  Several feeds are tagged and unioned: columns are numbered slots shared by type, so a
union is as wide as its widest feed and not as the sum of them.

A feed stays on the driver, since its maps may refer to DataFrames; executors get its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from godwit.plan.compiled import SourceInput
from godwit.plan.maps import map_dataframe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.plan.compiled import CompiledFlow

__all__ = ["Feed", "FeedInput", "feed_frames", "feeds_of", "read_feeds", "streaming_dataframe"]

_FEED = "__godwit_feed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedInput:
    """What one operator takes from a feed."""

    operator: int  # index of the operator in the flow
    slots: tuple[str, ...]  # slots of its columns: key columns, then the others
    schema: pa.Schema  # their names and Arrow types
    # slot of the event time, at one of the inputs of a feed; ``None`` at the others
    time: str | None = None
    # number of the watermark that its event times move (`CompiledFlow.watermarks`)
    watermark: int = 0
    number: int = 0  # which of the operator's inputs it is


@dataclass(slots=True, kw_only=True)
class Feed:
    """A source after its maps, and the operators that read it."""

    source: str  # name of the source
    maps: tuple[Any, ...]  # dataFrame maps, in order
    columns: dict[str, str] = field(default_factory=dict)  # column → slot
    types: dict[str, pa.DataType] = field(default_factory=dict)  # slot → Arrow type
    inputs: list[FeedInput] = field(default_factory=list)  # the operators


def feeds_of(flow: CompiledFlow) -> tuple[Feed, ...]:
    """Find the feeds of a flow, by names of sources, then as its operators were declared.

    Spark numbers the sources of a query in the order it comes upon them, and finds their offsets by
    these numbers.  So the order must not follow the operators, which come and go.
    """
    feeds: list[Feed] = []
    # As they were declared, whatever the physical plan: see `CompiledFlow.under`.
    declared = {operator: number for number, operator in enumerate(flow.actions)}
    watermarks = tuple(enumerate(flow.watermarks))
    index_of = {operator.name: index for index, operator in enumerate(flow.operators)}
    for source_input in sorted(
        flow.inputs, key=lambda source_input: declared[source_input.operator]
    ):
        if not isinstance(source_input, SourceInput):
            continue
        feed = next(
            (f for f in feeds if f.source == source_input.source and f.maps == source_input.maps),
            None,
        )
        if feed is None:
            feed = Feed(source=source_input.source, maps=source_input.maps)
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
    number = 0
    while (slot := f"{dtype}_{number}".replace(" ", "")) in taken:
        number += 1
    return slot


def feed_frames(
    feeds: tuple[Feed, ...], sources: Mapping[str, DataFrame]
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
