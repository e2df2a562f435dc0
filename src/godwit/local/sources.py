"""Rows of sources: what users give for an epoch, as Arrow tables, and as what operators read."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.columns.tables import is_table, not_rows_error
from godwit.engine.lane.lane_flow import source_feeds
from godwit.engine.lane.source_side import MappedRows, input_rows
from godwit.model.errors import InvalidInputError
from godwit.model.naming import did_you_mean, listing, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from godwit.engine.lane.lane_flow import Feed, LaneInput
    from godwit.plan.compiled import CompiledFlow


def check_sources(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise `InvalidInputError` if one of `names` is not a source of the flow (`known`)."""
    if not isinstance(names, Mapping):
        example = known[0] if known else "orders"
        raise InvalidInputError(
            f"Rows were given as a value of type {type_name(names)}, which names no source.",
            remedy=f"Give a dict of sources and rows, as in {{{example!r}: [...]}}; the sources "
            f"are {listing(known)}.",
        )
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"The flow has no source {name!r}.",
                remedy=f"{did_you_mean(str(name), known)}Its sources are {listing(known)}.",
                source=name,
            )


def check_loops(names: Iterable[str], loops: Collection[str]) -> None:
    """Raise if rows are given for a loop, whose rows only an operator feeds back."""
    for name in names:
        if name in loops:
            raise InvalidInputError(
                f"Rows were given for {name!r}, which is a loop.",
                remedy="Give rows of a source; the flow itself feeds rows to a loop.",
                source=name,
            )


def split_into_epochs(
    source: str, rows: Any, *, epochs: int | None, rows_per_epoch: int | None
) -> list[Any]:
    """Return a source's rows for each epoch: a list of epochs as given, or one table divided.

    Raises `InvalidInputError` for other values.
    """
    is_rows = is_table(rows) or (
        isinstance(rows, Sequence) and bool(rows) and isinstance(rows[0], Mapping | tuple)
    )
    if not is_rows:
        if isinstance(rows, str) or not isinstance(rows, Sequence):
            raise not_rows_error(source, rows)
        if epochs is not None or rows_per_epoch is not None:
            raise InvalidInputError(
                f"Source {source!r} was given a list of epochs, and epochs= or rows_per_epoch= "
                "says how to cut one table.",
                remedy="Give one table (or one list of rows) to be cut, or leave that out.",
                source=source,
            )
        return list(rows)
    if epochs is None and rows_per_epoch is None:
        return [rows]
    count = _count_rows(rows)
    if rows_per_epoch is not None:
        edges = [*range(0, count, rows_per_epoch), count]
    else:
        assert epochs is not None, "one of both is given"
        edges = [count * number // epochs for number in range(epochs + 1)]
    return [_slice_rows(rows, *edge) for edge in itertools.pairwise(edges)]


def lane_inputs(
    flow: CompiledFlow,
    tables: Mapping[str, pa.Table],  # source → its rows
    # ``mapped(source, maps, table)`` applies DataFrame maps; by default they change nothing
    mapped: Callable[[str, tuple[Any, ...], pa.Table], pa.Table] = lambda _source, _maps, rows: (
        rows
    ),
    *,
    partitions: int = 1,  # source partitions that the rows of a source come in
) -> dict[LaneInput | str, list[pa.RecordBatch]]:
    """Apply maps to the sources' tables; return input of an operator → its batches.

    `tables`: source → its rows in an epoch. `partitions`: number of batches to divide them into.
    Rows for which a map fails are added by the name of their sink.
    """
    feeds = source_feeds(flow)
    inputs: dict[LaneInput | str, list[pa.RecordBatch]] = {}
    for source, table in tables.items():
        own = MappedRows(table)

        def after(feed: Feed, own: MappedRows = own, rows: pa.Table = table) -> pa.Table:
            """Return the source's rows after a feed's maps."""
            if feed.source in flow.own_sources:
                return own.of_feed(feed)
            return mapped(feed.source, feed.maps, rows)

        for lane_input, rows in input_rows(feeds, source, after):
            edges = [rows.num_rows * part // partitions for part in range(partitions + 1)]
            inputs.setdefault(lane_input, []).extend(
                rows.slice(start, stop - start)
                for start, stop in itertools.pairwise(edges)
                if stop > start
            )
        for failed_map, failed in own.diverted:
            inputs.setdefault(failed_map.failures_to, []).append(failed)
    return inputs


def _count_rows(rows: Any) -> int:
    """Return the number of rows of a table or a list."""
    return int(rows.num_rows) if isinstance(rows, pa.Table | pa.RecordBatch) else len(rows)


def _slice_rows(rows: Any, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of a table, a pandas frame or a list."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.slice(start, stop - start)
    return rows.iloc[start:stop] if is_table(rows) else rows[start:stop]
