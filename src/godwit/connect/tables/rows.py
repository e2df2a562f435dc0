"""Rows with a sign, from changes in a log and from rows of a snapshot.

Everything here is a function of a split, and runs on executors. A `Decoding` knows the database's
form of changes and values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE
from godwit.columns.signed import UNCHANGED as UNCHANGED_COLUMN
from godwit.model.text import counted
from godwit.sources.source import Split

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW: Final = 10_000
"""Minimum number of rows for a second split."""

UNCHANGED: Final = object()
"""Placeholder for a large value that an update left unchanged."""

Key = list[str]
"""Values of a key, as text."""

Row = list[Any]
"""Stored values, null as ``None``, or `UNCHANGED`."""


class Mark(NamedTuple):
    """A place in the snapshot: after a key of a table, or, without a key, before its first row."""

    table: int
    key: Key | None


class Segment(NamedTuple):
    """Part of the snapshot before `end`, and after the segment before it."""

    end: Mark
    lsn: int  # position of its moment in the log


class TableColumn(Protocol):
    """A column of a table in the server's catalogue."""

    @property
    def name(self) -> str:
        """Name of the column."""

    @property
    def shown_type(self) -> str:
        """Type in SQL's notation."""

    @property
    def natural(self) -> pa.DataType:
        """Arrow type that values are read as by default."""

    @property
    def may_be_left_out(self) -> bool:
        """True if an update may omit a value that it does not change."""

    @property
    def by_default(self) -> bool:
        """True if the column is read by default."""

    def can_be(self, dtype: pa.DataType) -> bool:
        """Return whether values can be read as an Arrow type, exactly or with an error each."""


class ChangedTable(Protocol):
    """A table whose changes are read."""

    @property
    def name(self) -> str:
        """Name of the table, with its schema."""

    @property
    def oid(self) -> Any:
        """Identity of the table, for positions."""

    @property
    def columns(self) -> Sequence[TableColumn]:
        """Columns of the table."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the columns that identify a row; may be empty."""

    def column(self, name: str) -> TableColumn | None:
        """Return a column by its name."""


class Decoding(Protocol):
    """Decoder of a database's changes and values."""

    def change(self, message: bytes, reading: Any) -> tuple[Row | None, bool, Row | None]:
        """Return the former row, whether it is complete (else only its key), and the new row."""

    def num_rows(self, message: bytes) -> int:
        """Return the maximum number of signed rows that a change yields."""

    def column(self, values: Row, schema_field: pa.Field, reading: Any) -> pa.Array:
        """Return stored values as a column; raise ValueError for one that does not fit its type."""

    def key(self, values: Row, table: Any, reading: Any) -> Key:
        """Return the values of a row's key as texts."""

    def keys_up_to(self, table: Any, keys: Sequence[Key], bound: Key) -> set[int]:
        """Return the numbers of the keys that are not after `bound`, in the server's order."""


def about_changes(transaction: pa.DataType) -> dict[str, pa.DataType]:
    """Return the columns with metadata of a change.

    These are the position of its commit in the log, the time of that, the id of its transaction,
    the name of its table, and whether it is a row of the snapshot.
    """
    return {
        "position": pa.int64(),
        "time": pa.timestamp("us", "UTC"),
        "transaction": transaction,
        "table": pa.string(),
        "snapshot": pa.bool_(),
    }


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Columns of the source's rows."""

    columns: pa.Schema  # of the tables
    include: Mapping[str, str]  # kind of a column about changes → its name
    about: Mapping[str, pa.DataType]  # of `about_changes`
    before: bool  # changes, else upserts
    has_unchanged: bool  # upserts that may leave out large values

    @property
    def schema(self) -> pa.Schema:
        """Columns of the tables, metadata of changes, and the sign."""
        included = [pa.field(name, self.about[what]) for what, name in self.include.items()]
        unchanged = [UNCHANGED_COLUMN] if self.has_unchanged else []
        return pa.schema([*self.columns, *included, CHANGE, *unchanged])


@dataclass(frozen=True, slots=True)
class TableReading:
    """Positions of the values of a table's columns in its messages."""

    table: int  # number of the table
    places: Mapping[str, int]  # name of a column → place in a message's row


@dataclass(slots=True)
class Block:
    """Changes of one table that are decoded in the same way."""

    reading: TableReading
    messages: list[bytes] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)  # of each change: position of its commit
    times_us: list[int] = field(default_factory=list)
    xids: list[Any] = field(default_factory=list)

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

    rows: list[Row] = field(default_factory=list)
    signs: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)  # number of the change of each row

    def add(self, number: int, row: Row, sign: int) -> None:
        """Add a row."""
        self.rows.append(row)
        self.signs.append(sign)
        self.sources.append(number)


class UndecodableChangeError(ValueError):
    """A change lacks values of its row."""


def rows_of_changes(
    block: Block,
    layout: RowLayout,
    table: ChangedTable,
    names: Sequence[str],
    *,
    segments: Sequence[Segment],
    decoding: Decoding,
) -> pa.RecordBatch:
    """Return the rows that the changes of a block insert and delete.

    `segments`: of a snapshot whose moments are not all before these changes. Raises
    `UndecodableChangeError`, and ValueError of a value.
    """
    signed = _signed_rows(block, layout, table, decoding)
    if segments:
        signed = _without_snapshot(signed, block, table, segments, decoding)
    places = block.reading.places
    columns = []
    for name in names:
        schema_field = layout.schema.field(name)
        if name in layout.columns.names:
            place = places[name]
            values = [row[place] for row in signed.rows]
            if layout.has_unchanged or UNCHANGED in values:
                values = [None if value is UNCHANGED else value for value in values]
            columns.append(decoding.column(values, schema_field, block.reading))
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
    columns: Mapping[str, pa.Array],
    number: int,
    layout: RowLayout,
    table: ChangedTable,
    names: Sequence[str],
    *,
    lsn: int,
) -> pa.RecordBatch:
    """Return rows of the snapshot at `lsn` as inserts, given their columns."""
    about = {
        "position": lsn,
        "time": None,
        "transaction": None,
        "table": table.name,
        "snapshot": True,
    }
    constants: dict[str, Any] = {name: about[kind] for kind, name in layout.include.items()}
    constants |= {CHANGE.name: 1, UNCHANGED_COLUMN.name: None}
    schema = pa.schema([layout.schema.field(name) for name in names])
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * number, pa.struct([])))
    arrays = [
        columns[field.name]
        if field.name in layout.columns.names
        else pa.repeat(pa.scalar(constants[field.name], field.type), number)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _signed_rows(
    block: Block, layout: RowLayout, table: ChangedTable, decoding: Decoding
) -> _Signed:
    """Return the rows that changes insert or delete, with all columns of the table."""
    key_places = [block.reading.places[name] for name in table.keys]
    column_places = [block.reading.places[name] for name in layout.columns.names]
    signed = _Signed()
    for number, message in enumerate(block.messages):
        old_row, is_whole, new_row = decoding.change(message, block.reading)
        if layout.before and not is_whole:
            msg = "a change lacks the row before it: the table's REPLICA IDENTITY is no longer FULL"
            raise UndecodableChangeError(msg)
        if new_row is None:
            assert old_row is not None
            signed.add(number, old_row, -1)
            continue
        new_row = _with_former_values(new_row, old_row, whole=is_whole)
        key_changed = old_row is not None and any(
            old_row[key_place] != new_row[key_place] for key_place in key_places
        )
        if old_row is not None and (layout.before or key_changed):
            signed.add(number, old_row, -1)
        lacks_value = UNCHANGED in new_row and any(
            new_row[place] is UNCHANGED for place in column_places
        )
        key_changed = key_changed or (
            lacks_value and any(new_row[place] is UNCHANGED for place in key_places)
        )
        if lacks_value and (key_changed or not layout.has_unchanged):
            msg = (
                "an update changed the key of a row, and the log omits a large value of it, "
                "which is unknown for the new key"
                if layout.has_unchanged
                else "an update omits a large value, which updates of this table did not do before"
            )
            raise UndecodableChangeError(msg)
        signed.add(number, new_row, 1)
    return signed


def _without_snapshot(
    signed: _Signed,
    block: Block,
    table: ChangedTable,
    segments: Sequence[Segment],
    decoding: Decoding,
) -> _Signed:
    """Drop changes that the snapshot already contains, in segments read at a later place."""
    number_of_table = block.reading.table
    last_lsn = max(segment.lsn for segment in segments)
    numbers = [
        position for position, source in enumerate(signed.sources) if block.lsns[source] < last_lsn
    ]
    if not numbers:
        return signed
    keys = [decoding.key(signed.rows[position], table, block.reading) for position in numbers]
    snapshot_lsns = np.full(len(numbers), segments[-1].lsn, np.int64)
    segments_of_table = [
        segment_
        for segment_ in segments
        if segment_.end.table == number_of_table and segment_.end.key is not None
    ]
    later_segments = [segment_ for segment_ in segments if segment_.end.table > number_of_table]
    snapshot_lsns[:] = later_segments[0].lsn
    for segment in reversed(segments_of_table):
        assert segment.end.key is not None
        snapshot_lsns[list(decoding.keys_up_to(table, keys, segment.end.key))] = segment.lsn
    dropped = {
        position
        for position, snapshot_lsn in zip(numbers, snapshot_lsns.tolist(), strict=True)
        if block.lsns[signed.sources[position]] < snapshot_lsn
    }
    remaining = _Signed()
    for position, row in enumerate(signed.rows):
        if position not in dropped:
            remaining.add(signed.sources[position], row, signed.signs[position])
    return remaining


def _left_out(signed: _Signed, layout: RowLayout, places: Mapping[str, int]) -> pa.Array:
    """Return the names of columns that each row leaves unchanged, one per line."""
    names_and_places = [(name, places[name]) for name in layout.columns.names]
    texts = [
        "\n".join(name for name, place in names_and_places if row[place] is UNCHANGED) or None
        if sign > 0 and UNCHANGED in row
        else None
        for row, sign in zip(signed.rows, signed.signs, strict=True)
    ]
    return pa.array(texts, pa.string())


def _about_changes(
    name: str, signed: _Signed, block: Block, layout: RowLayout, table: ChangedTable
) -> pa.Array:
    """Return a column with metadata of changes."""
    what = next(what for what, other in layout.include.items() if other == name)
    dtype = layout.about[what]
    if what == "table":
        return pa.repeat(pa.scalar(table.name, dtype), len(signed.rows))
    if what == "snapshot":
        return pa.repeat(pa.scalar(False, dtype), len(signed.rows))
    values = {"position": block.lsns, "time": block.times_us, "transaction": block.xids}[what]
    return pc.take(pa.array(values, dtype), pa.array(signed.sources, pa.int64()))


def _with_former_values(new: Row, former: Row | None, *, whole: bool) -> Row:
    """Return a new row with its omitted values, if the former row has them."""
    if UNCHANGED not in new or former is None:
        return new
    return [
        old if value is UNCHANGED and (whole or old is not None) else value
        for value, old in zip(new, former, strict=True)
    ]


class TableChanges:
    """Changes that a split reads."""

    __slots__ = ("blocks", "segments")

    def __init__(self, blocks: list[Block], segments: list[list[Any]]) -> None:
        self.blocks, self.segments = blocks, segments


def splits_of_changes(
    blocks: list[Block],
    segments: list[list[Any]],
    parallelism: int,
    decoding: Decoding,
    first: str,
) -> list[Split]:
    """Return splits of changes, of about equal size; `first`: place of the first change."""
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
    return [_split_of(part, segments, decoding, first) for part in parts]


def _split_of(
    blocks: list[Block], segments: list[list[Any]], decoding: Decoding, first: str
) -> Split:
    """Return the split for some changes."""
    messages = [message for block in blocks for message in block.messages]
    return Split(
        rows=sum(map(decoding.num_rows, messages)),
        size_bytes=sum(map(len, messages)),
        what=f"{counted(len(messages), 'change')} from {first}",
        payload=TableChanges(blocks, segments),
        exact=False,
        arrived_us=tuple(t for block in blocks for t in block.times_us),
    )
