"""Rows with a sign, from messages of a slot and from rows of a snapshot.

Everything here is a function of a split, and runs on executors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE
from godwit.columns.signed import UNCHANGED as UNCHANGED_COLUMN
from godwit.connect.postgres import pgoutput
from godwit.connect.postgres.catalog import lsn_text
from godwit.connect.postgres.pgoutput import UNCHANGED
from godwit.connect.postgres.snapshot import FEW, Segment, keys_up_to
from godwit.connect.postgres.types import column_from_texts, texts_of
from godwit.model.text import counted
from godwit.sources.source import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.connect.postgres.catalog import SourceTable
    from godwit.connect.postgres.connection import Connection

INCLUDED: Final[Mapping[str, pa.DataType]] = {
    "position": pa.int64(),
    "time": pa.timestamp("us", "UTC"),
    "transaction": pa.int64(),
    "table": pa.string(),
    "snapshot": pa.bool_(),
}
"""Columns about a change: position of its commit in the log, time of that, id of its transaction,
name of its table, and whether it is a row of the snapshot."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of the source's rows."""

    columns: pa.Schema  # of the tables
    include: Mapping[str, str]  # `INCLUDED` → name of the column
    before: bool  # changes, else upserts
    has_unchanged: bool  # upserts that may leave out large values

    @property
    def schema(self) -> pa.Schema:
        """Columns of the tables, about changes, and the sign."""
        included = [pa.field(name, INCLUDED[what]) for what, name in self.include.items()]
        unchanged = [UNCHANGED_COLUMN] if self.has_unchanged else []
        return pa.schema([*self.columns, *included, CHANGE, *unchanged])


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the values of a table's columns are in its messages."""

    table: int  # number of the table
    places: Mapping[str, int]  # name of a column → place in a message's row


@dataclass(slots=True)
class Block:
    """Changes of one table that are decoded alike."""

    reading: Reading
    messages: list[bytes] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)  # of each change: position of its commit
    times_us: list[int] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)

    def slice(self, begin: int, end: int) -> Block:
        """Return some of the changes."""
        part = slice(begin, end)
        return Block(
            self.reading,
            self.messages[part],
            self.lsns[part],
            self.times_us[part],
            self.xids[part],
        )


@dataclass(slots=True)
class _Signed:
    """Rows that changes insert or delete."""

    rows: list[list[Any]] = field(default_factory=list)
    signs: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)  # number of the change of each row

    def add(self, number: int, row: list[Any], sign: int) -> None:
        """Add a row."""
        self.rows.append(row)
        self.signs.append(sign)
        self.sources.append(number)


class UndecodableChangeError(ValueError):
    """A change lacks what its row needs."""


def rows_of_changes(
    block: Block,
    layout: Layout,
    table: SourceTable,
    names: Sequence[str],
    *,
    segments: Sequence[Segment],
    connect: Callable[[], Connection],
) -> pa.RecordBatch:
    """Return the rows that the changes of a block insert and delete.

    `segments`: of a snapshot whose moments are not all before these changes; `connect`: opens a
    connection on which keys are compared with their bounds. Raises `UndecodableChangeError`, and
    ValueError of a value.
    """
    signed = _signed_rows(block, layout, table)
    if segments:
        signed = _without_snapshot(signed, block, table, segments, connect)
    places = block.reading.places
    columns = []
    for name in names:
        schema_field = layout.schema.field(name)
        if name in layout.columns.names:
            place = places[name]
            values = [row[place] for row in signed.rows]
            if layout.has_unchanged or UNCHANGED in values:
                values = [None if value is UNCHANGED else value for value in values]
            columns.append(column_from_texts(texts_of(values), schema_field))
        elif name == CHANGE.name:
            columns.append(pa.array(signed.signs, pa.int8()))
        elif name == UNCHANGED_COLUMN.name and layout.has_unchanged:
            columns.append(_left_out(signed, layout, places))
        else:
            columns.append(_about_changes(name, signed, block, layout, table))
    schema = pa.schema([layout.schema.field(name) for name in names])
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(signed.rows), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def rows_of_snapshot(
    texts: pa.RecordBatch,
    layout: Layout,
    table: SourceTable,
    names: Sequence[str],
    *,
    lsn: int,
) -> pa.RecordBatch:
    """Return rows of a snapshot of the moment `lsn`, given as text columns, as inserts."""
    number = texts.num_rows
    about = {
        "position": lsn,
        "time": None,
        "transaction": None,
        "table": table.name,
        "snapshot": True,
    }
    constants: dict[str, Any] = {name: about[what] for what, name in layout.include.items()}
    constants |= {CHANGE.name: 1, UNCHANGED_COLUMN.name: None}
    columns = []
    for name in names:
        schema_field = layout.schema.field(name)
        if name in layout.columns.names:
            columns.append(column_from_texts(texts.column(name), schema_field))
        else:
            columns.append(pa.repeat(pa.scalar(constants[name], schema_field.type), number))
    schema = pa.schema([layout.schema.field(name) for name in names])
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * number, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _signed_rows(block: Block, layout: Layout, table: SourceTable) -> _Signed:
    """Return the rows that changes insert or delete, with all columns of the table."""
    key_places = [block.reading.places[name] for name in table.keys]
    wanted = [block.reading.places[name] for name in layout.columns.names]
    signed = _Signed()
    for number, message in enumerate(block.messages):
        former, whole, new = pgoutput.read_change(message)
        if layout.before and message[0] != pgoutput.INSERT and not whole:
            msg = "a change has no row before it: the table's REPLICA IDENTITY is not FULL any more"
            raise UndecodableChangeError(msg)
        if new is None:
            assert former is not None
            signed.add(number, former, -1)
            continue
        new = pgoutput.filled(new, former, whole=whole)
        moved = former is not None and any(former[p] != new[p] for p in key_places)
        if former is not None and (layout.before or moved):
            signed.add(number, former, -1)
        left_out = UNCHANGED in new and any(new[place] is UNCHANGED for place in wanted)
        moved = moved or (left_out and any(new[place] is UNCHANGED for place in key_places))
        if left_out and (moved or not layout.has_unchanged):
            msg = (
                "an update changed the key of a row, and PostgreSQL left out a large value of it, "
                "which the new key does not have yet"
                if layout.has_unchanged
                else "an update left out a large value, which updates of this table did not before"
            )
            raise UndecodableChangeError(msg)
        signed.add(number, new, 1)
    return signed


def _without_snapshot(
    signed: _Signed,
    block: Block,
    table: SourceTable,
    segments: Sequence[Segment],
    connect: Callable[[], Connection],
) -> _Signed:
    """Leave out rows of changes that the snapshot has: of a segment of a later moment."""
    number_of_table = block.reading.table
    last = max(segment.lsn for segment in segments)
    numbers = [n for n, source in enumerate(signed.sources) if block.lsns[source] < last]
    if not numbers:
        return signed
    places = [block.reading.places[name] for name in table.keys]
    keys = [[signed.rows[n][place].decode() for place in places] for n in numbers]
    moments = np.full(len(numbers), segments[-1].lsn, np.int64)
    bounded = [s for s in segments if s.end.table == number_of_table and s.end.key is not None]
    later = [s for s in segments if s.end.table > number_of_table]
    moments[:] = later[0].lsn
    if bounded:
        with connect() as connection:
            for segment in reversed(bounded):
                assert segment.end.key is not None
                moments[list(keys_up_to(connection, table, keys, segment.end.key))] = segment.lsn
    dropped = {
        n
        for n, moment in zip(numbers, moments.tolist(), strict=True)
        if block.lsns[signed.sources[n]] < moment
    }
    rest = _Signed()
    for n, row in enumerate(signed.rows):
        if n not in dropped:
            rest.add(signed.sources[n], row, signed.signs[n])
    return rest


def _left_out(signed: _Signed, layout: Layout, places: Mapping[str, int]) -> pa.Array:
    """Return the names of columns that each row leaves as they are, one a line."""
    named = [(name, places[name]) for name in layout.columns.names]
    texts = [
        "\n".join(name for name, place in named if row[place] is UNCHANGED) or None
        if sign > 0 and UNCHANGED in row
        else None
        for row, sign in zip(signed.rows, signed.signs, strict=True)
    ]
    return pa.array(texts, pa.string())


def _about_changes(
    name: str, signed: _Signed, block: Block, layout: Layout, table: SourceTable
) -> pa.Array:
    """Return a column about changes."""
    what = next(what for what, other in layout.include.items() if other == name)
    dtype = INCLUDED[what]
    if what == "table":
        return pa.repeat(pa.scalar(table.name, dtype), len(signed.rows))
    if what == "snapshot":
        return pa.repeat(pa.scalar(False, dtype), len(signed.rows))
    values = {"position": block.lsns, "time": block.times_us, "transaction": block.xids}[what]
    return pc.take(pa.array(values, pa.int64()), pa.array(signed.sources, pa.int64())).cast(dtype)


class Changes:
    """Changes that a split reads."""

    __slots__ = ("blocks", "segments")

    def __init__(self, blocks: list[Block], segments: list[list[Any]]) -> None:
        self.blocks, self.segments = blocks, segments


def splits_of_changes(
    blocks: list[Block], segments: list[list[Any]], parallelism: int
) -> list[Split]:
    """Return splits of changes, of about equal size."""
    total = sum(len(block.messages) for block in blocks)
    if not total:
        return []
    size = total if total <= FEW else -(-total // max(1, parallelism))
    parts: list[list[Block]] = [[]]
    left = size
    for block in blocks:
        begin, end = 0, len(block.messages)
        while begin < end:
            if not left:
                parts.append([])
                left = size
            stop = min(end, begin + left)
            parts[-1].append(block.slice(begin, stop))
            left -= stop - begin
            begin = stop
    return [_split_of(part, segments) for part in parts]


def _split_of(blocks: list[Block], segments: list[list[Any]]) -> Split:
    """Return the split that reads some changes."""
    messages = [message for block in blocks for message in block.messages]
    return Split(
        rows=sum(map(pgoutput.num_signed_rows, messages)),
        size_bytes=sum(map(len, messages)),
        what=f"{counted(len(messages), 'change')} from {lsn_text(blocks[0].lsns[0])}",
        payload=Changes(blocks, segments),
        exact=False,
        arrived_us=tuple(t for block in blocks for t in block.times_us),
    )
