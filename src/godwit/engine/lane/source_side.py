"""Source side of an epoch: payloads for lanes from rows of sources, on every cluster.

The driver runs it for few rows, else tasks of executors for their splits: from splits or tables to
payloads addressed to lanes.

Invariant: all rows of a split are numbered by the split's place in the epoch, independent of the
reading process and the batches, so operators process rows in the order of the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.hashing import RowsDigest
from godwit.engine.lane.messages import senders_that_differ
from godwit.engine.lane.wire import (
    EMITTED,
    FAILED,
    ship,
    ship_ages,
    ship_arrivals,
    ship_digest,
    ship_unreadable,
)
from godwit.model.errors import GodwitError, SourceError
from godwit.model.latency import MAX_TRACES, LatencyHistogram
from godwit.model.naming import error_line, listing, type_name
from godwit.sources.source import Unreadable
from godwit.time.event_time import Arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.engine.lane.lane_flow import Feed, LaneFlow, LaneInput
    from godwit.engine.lane.messages import LaneReport
    from godwit.engine.lane.wire import Blob, Shipment
    from godwit.plan.maps import ArrowMap
    from godwit.sources.source import Source, Split

_MAX_AGES = 8192  # approximate number of sampled rows of a table
_MAX_TRACED = 64  # likewise, of rows whose headers are looked at
_TRACE_CONTEXT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.{0,64}")
_MAX_ROWS = 1_000_000
_MAX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedSplit:
    """A split of a source in an epoch."""

    number: int  # among the epoch's splits: rows of lower numbers are older
    source: str  # name of the source
    split: Split


class MappedRows:
    """A table of a source after maps over Arrow tables; each sequence of maps runs once."""

    def __init__(self, rows: pa.Table) -> None:
        self._after: dict[tuple[ArrowMap, ...], pa.Table] = {(): rows}
        # rows for which a map failed that diverts them, and the map
        self.diverted: list[tuple[ArrowMap, pa.RecordBatch]] = []

    def after(self, maps: tuple[ArrowMap, ...]) -> pa.Table:
        """Return the rows after some maps."""
        if maps not in self._after:
            before = self.after(maps[:-1])
            self._after[maps] = maps[-1].apply_or_divert(before, self._divert)
        return self._after[maps]

    def of_feed(self, feed: Feed) -> pa.Table:
        """Return the rows after the maps of a feed."""
        return self.after(feed.maps)

    def _divert(self, failed_map: ArrowMap, rows: pa.RecordBatch) -> None:
        self.diverted.append((failed_map, rows))


def input_rows(
    feeds: Iterable[Feed],
    source: str,
    mapped: Callable[[Feed], pa.Table],
) -> Iterator[tuple[LaneInput, pa.RecordBatch]]:
    """Yield the rows of each operator input that a source feeds, after its maps.

    Rows of an input keep their order; many rows are divided into several batches. `mapped`: returns
    the source's rows after a feed's maps.
    """
    for feed in feeds:
        if feed.source != source:
            continue
        table = mapped(feed)
        if not table.num_rows:
            continue
        table = table.select(feed.schema.names).cast(feed.schema).combine_chunks()
        for batch in table.to_batches():
            yield from feed.inputs_from(batch)


def ship_input(
    shipment: Shipment,
    lane_input: LaneInput,
    rows: pa.RecordBatch,
    partition: int,
    chunk: int = 0,
) -> Iterator[Blob]:
    """Yield payloads with rows for the operator that reads them, by lane.

    Rows are combined per key if that saves work. `rows`: columns of the input, and of its event
    time. `partition`: number of the part of the source's rows, in order of arrival; `chunk`: number
    within it.
    """
    number = lane_input.number
    if lane_input.time is not None:
        times = rows.column(rows.schema.get_field_index(lane_input.time))
        arrivals = Arrivals.of(lane_input.watermark, times, shipment.time.max_event_time(number))
        yield from ship_arrivals(shipment, arrivals, (0, partition, chunk, 0), number=number)
    columns = rows if lane_input.columns is None else rows.select(list(lane_input.columns))
    yield from ship(shipment, columns, (0, partition, chunk), number=number)


def ship_splits(
    flow: LaneFlow,
    shipments: Sequence[Shipment],
    sources: Mapping[str, Source],
    splits: Iterable[NumberedSplit],
    *,
    places: int = 0,
) -> Iterator[Blob]:
    """Read splits, and yield payloads with their rows for the operators that read them.

    A split whose payloads are lost with an executor is read again, while some lanes have rows of
    the first read: see `check_repeated_reads`. `shipments`: route of rows to each operator in this
    epoch. `places`: number of lanes that get a digest of the rows read; 0 if splits are never read
    again.
    """
    clock_us = shipments[0].time.clock
    ages: dict[str, tuple[int, list[LatencyHistogram]]] = {}  # of each source; its first split
    for numbered in splits:
        name, columns = numbered.source, flow.columns[numbered.source]
        chunks, digest, unreadable = count(), RowsDigest(), RowsDigest()
        arrived_us, rows_read = numbered.split.arrived_us, 0
        for table in gather_batches(read_split(name, sources[name], numbered.split, columns)):
            if isinstance(table, pa.RecordBatch):
                unreadable.update(table)
                origin, keep = (0, numbered.number, next(chunks), 0), name in flow.unreadable
                yield from ship_unreadable(shipments[0], name, table, origin, keep=keep)
                continue
            rows_read += table.num_rows
            if name in flow.arrival:
                column = table.column(flow.arrival[name])
                histogram = _age_histogram(column, clock_us)
                if name in flow.traced:
                    headers = table.column(flow.traced[name])
                    histogram = replace(histogram, traces=_trace_contexts(headers))
                ages.setdefault(name, (numbered.number, []))[1].append(histogram)
            if places:
                for batch in table.to_batches():
                    digest.update(batch)
            mapped = MappedRows(table)
            for lane_input, rows in input_rows(flow.feeds, name, mapped.of_feed):
                shipment = shipments[lane_input.index]
                yield from ship_input(shipment, lane_input, rows, numbered.number, next(chunks))
            for failed_map, failed in mapped.diverted:
                to, origin = failed_map.failures_to, (0, numbered.number, next(chunks), 0)
                yield from ship_unreadable(shipments[0], to, failed, origin, keep=True, kind=FAILED)
        value = digest.value ^ (unreadable.value if unreadable.rows else 0)
        yield from ship_digest(value, (0, numbered.number), level=1, places=places)
        if arrived_us and rows_read and name not in flow.arrival:
            pieces = np.empty((len(arrived_us), 3))
            pieces[:, 0] = rows_read / len(arrived_us)
            pieces[:, 1:] = (clock_us - np.array(arrived_us)[:, None]) / 1e6
            part = LatencyHistogram.spread(pieces)
            ages.setdefault(name, (numbered.number, []))[1].append(part)
    for name, (number, parts) in ages.items():
        yield from ship_ages(shipments[0], name, LatencyHistogram.merged(parts), number)


def _age_histogram(arrived: pa.ChunkedArray, clock_us: int) -> LatencyHistogram:
    """Return a histogram of rows' ages at `clock_us`; rows without an arrival time have age 0.

    For many rows, an evenly spaced sample is counted, and the oldest row.
    """
    per_us = {"s": 1e-6, "ms": 1e-3, "us": 1.0, "ns": 1e3}[arrived.type.unit]
    step = -(-len(arrived) // _MAX_AGES)
    some: list[npt.NDArray[np.int64]] = []
    oldest: list[int] = []
    for chunk in arrived.chunks:
        if not len(chunk):
            continue
        times = chunk.cast(pa.int64())
        if times.null_count:
            times = times.fill_null(int(clock_us * per_us))
        values = values_of(times)
        some.append(values[::step])
        oldest.append(int(values.min()))
    return LatencyHistogram.of_us(
        clock_us - (np.concatenate(some) / per_us).astype(np.int64),
        rows=len(arrived),
        max_us=clock_us - int(min(oldest) / per_us),
    )


def _trace_contexts(headers: pa.ChunkedArray) -> tuple[str, ...]:
    """Return the W3C trace contexts of some rows, by the headers of their messages.

    An evenly spaced sample of the rows is looked at.
    """
    step = -(-len(headers) // _MAX_TRACED) or 1
    some = headers.take(pa.array(range(0, len(headers), step), pa.int64())).to_pylist()
    contexts: dict[str, None] = {}
    for of_row in some:
        for header in of_row or ():
            if (header["key"] or "").lower() == "traceparent" and header["value"]:
                context = bytes(header["value"]).decode("ascii", "replace").strip()
                if _TRACE_CONTEXT.fullmatch(context):
                    contexts[context] = None
        if len(contexts) >= MAX_TRACES:
            break
    return tuple(contexts)[:MAX_TRACES]


def check_repeated_reads(reports: Iterable[LaneReport], splits: Sequence[NumberedSplit]) -> None:
    """Raise `SourceError` if lanes got different rows from repeated reads of one split.

    `splits`: those of the epoch. The error names source and split.
    """
    differ = senders_that_differ(reports)
    if not differ or (any(n >= EMITTED for _, n in differ) and all(level for level, _ in differ)):
        return  # `godwit.engine.flow_epochs` checks rows emitted by lanes
    others = next((s for s in splits if (0, s.number) in differ), None)
    which = "One of the splits" if others is None else f"The split {others.split.what}"
    names = dict.fromkeys([split.source for split in splits] if others is None else [others.source])
    raise SourceError(
        f"{which} of source {listing(list(names))} returned different rows when it was read again, "
        "after the loss of an executor; nothing of this epoch is committed.",
        remedy="The same split must give the same rows, or raise: do not change its data while a "
        "query reads them. For a source of your own, see gw.testing.check_source.",
        source=others.source if others is not None else listing(list(names)),
    )


def read_split(
    name: str, source: Source, split: Split, columns: pa.Schema
) -> Iterator[pa.RecordBatch | Unreadable]:
    """Yield a split's batches, checked against the contract of sources.

    Raises `SourceError`, which names source and split.
    """
    read = 0
    try:
        for batch in source.read(split, columns.names):
            if isinstance(batch, Unreadable):
                _check_unreadable(name, source, split, batch.rows)
                yield batch
                continue
            _check_batch(name, split, batch, columns)
            read += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, schema=columns)
    except GodwitError:
        raise
    except (Exception, SystemExit) as error:
        raise source_error(name, "could not be read", error, split=split.what) from error
    most = split.rows
    if most is not None and (read > most or (split.exact and read < most)):
        raise SourceError(
            f"Source {name!r} returned {read} rows of {split.what}, which has {most}.",
            remedy="The same split must give the same rows, or raise. If its data were changed, "
            "restore them; for a source of your own, see gw.testing.check_source.",
            source=name,
            split=split.what,
        )


def source_error(name: str, failure: str, error: BaseException, **context: str) -> SourceError:
    """Return the error that a source raised `error`.

    `failure`: text such as "could not be read". `context`: further fields of the error.
    """
    where = f" ({context['split']})" if "split" in context else ""
    return SourceError(
        f"Source {name!r} {failure}{where}: {error_line(error)}.",
        remedy="Nothing of this epoch is committed. Fix the cause and start the query again: "
        "it continues from the last committed epoch.",
        source=name,
        **context,
    )


def _check_batch(name: str, split: Split, batch: object, columns: pa.Schema) -> None:
    """Raise if a source's value is not a record batch with the requested columns."""
    if not isinstance(batch, pa.RecordBatch):
        problem = f"a value of type {type_name(batch)} instead of a pyarrow.RecordBatch"
    elif batch.schema.names != columns.names:
        problem = f"columns {listing(batch.schema.names)} instead of {listing(columns.names)}"
    elif batch.schema.types != columns.types:
        field, dtype = next(
            (mine, its)
            for mine, its in zip(columns, batch.schema.types, strict=True)
            if mine.type != its
        )
        problem = f"column {field.name!r} as {dtype}, but its schema has {field.type}"
    else:
        return
    raise SourceError(
        f"Source {name!r} returned {problem} ({split.what}).",
        remedy="Let Source.read yield the requested columns, in their order and with the types "
        "of Source.schema.",
        source=name,
        split=split.what,
    )


def _check_unreadable(name: str, source: Source, split: Split, rows: object) -> None:
    """Raise if unreadable rows have other columns than `Source.unreadable`."""
    if isinstance(rows, pa.RecordBatch) and rows.schema == source.unreadable:
        return
    raise SourceError(
        f"Source {name!r} returned Unreadable rows ({split.what}) that are not a record batch with "
        "the columns of its attribute unreadable.",
        remedy="Let both have the same schema.",
        source=name,
        split=split.what,
    )


def gather_batches(
    batches: Iterable[pa.RecordBatch | Unreadable],
) -> Iterator[pa.Table | pa.RecordBatch]:
    """Yield batches joined to tables, large enough to combine well and small enough for memory.

    Unreadable rows are yielded as batches.
    """
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if isinstance(batch, Unreadable):
            yield batch.rows
            continue
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MAX_ROWS or size >= _MAX_BYTES:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(pending)
