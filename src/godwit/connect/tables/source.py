"""A source of a database's tables: their rows, and then their changes from the server's log.

A position says which part of the snapshot was read, and after which commit of the log the query
continues.  First the tables are read in order of their keys, as they were at one moment, whose
place in the log is exact, and then their changes from that moment on.

The moment is gone with the connection that has it.  If a query is killed before the last part, the
next run reads the parts that are left at another moment.  So the tables are divided into
*segments*, each of one moment.  Changes are read from the first moment on, and a change is left out
if its key is in a segment of a later moment than its commit.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import pyarrow as pa

from godwit.columns.signed import CHANGE, UNCHANGED
from godwit.columns.types import plain_schema, to_schema
from godwit.connect.tables.log import EVERYTHING, LogPlace, LogStream
from godwit.connect.tables.rows import (
    Block,
    ChangedTable,
    Decoding,
    Key,
    Mark,
    RowLayout,
    Segment,
    TableChanges,
    UndecodableChangeError,
    rows_of_changes,
    splits_of_changes,
)
from godwit.model.errors import InvalidFlowError, SourceError
from godwit.model.naming import check_number, listing
from godwit.sources.source import Source, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from godwit.columns.signed import Kind
    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Position

_PART_ROWS: Final = 250_000  # of the snapshot, in an epoch
_ADVANCE_S: Final = 5.0
"""While other tables change, the position follows the log this often, in epochs without rows, so
that the server can remove that part."""


class TableServer(Protocol):
    """Connection settings of a server."""

    @property
    def where(self) -> str:
        """Name of the source, for errors."""

    def error(self, what: str, remedy: str, **context: object) -> SourceError:
        """Return an error about the source."""

    def translating(self, what: str) -> AbstractContextManager[None]:
        """Context that translates the server's errors to the source's; `what`: failed action."""


class TableSnapshot(Protocol):
    """Consistent view of the tables, while this object has its connection."""

    @property
    def lsn(self) -> int:
        """Place of the view in the log."""

    @property
    def closed(self) -> bool:
        """True if the connection is lost, and its consistent view with it."""

    def close(self) -> None:
        """End the snapshot."""

    def keys_after(
        self, table: Any, after: Key | None, up_to: Key | None, rows: int
    ) -> tuple[int, Key | None]:
        """Return the number of the next rows of a table, at most `rows`, and the last row's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSourceOptions:
    """Options of a source of tables, checked.

    `where`: the source, for errors; `about`: types of the columns about changes.
    """

    where: str
    tables: tuple[str, ...]
    schema: pa.Schema | None
    before: bool
    snapshot: bool
    include: Mapping[str, str]  # kind of a column about changes → its name
    about: Mapping[str, pa.DataType]
    whole_transactions: bool
    max_rows: int | None
    skips_truncations: bool
    timeout_s: float

    @classmethod
    def of(
        cls,
        where: str,
        table: str | Sequence[str],
        *,
        schema: SchemaLike | None,
        before: bool,
        snapshot: bool,
        include: Sequence[str] | Mapping[str, str],
        about: Mapping[str, pa.DataType],
        whole_transactions: bool,
        max_rows_per_epoch: int | None,
        on_truncate: Literal["refuse", "skip"],
        timeout_s: float,
    ) -> TableSourceOptions:
        """Return the options, or raise if one is wrong."""
        tables = (table,) if isinstance(table, str) else tuple(table)
        if not tables or not all(isinstance(name, str) for name in tables):
            raise SourceError(f"{where} has table={table!r}.", remedy="Give the name of a table.")
        if on_truncate not in {"refuse", "skip"}:
            raise SourceError(
                f"{where} has on_truncate={on_truncate!r}.",
                remedy='Give "refuse" or "skip".',
            )
        if max_rows_per_epoch is not None:
            check_number("max_rows_per_epoch", max_rows_per_epoch, least=1, error=SourceError)
        return cls(
            where=where,
            tables=tables,
            schema=None if schema is None else to_schema(schema, where="The schema of a source"),
            before=before,
            snapshot=snapshot,
            include=_included_columns(where, include, about, several=len(tables) > 1),
            about=about,
            whole_transactions=whole_transactions,
            max_rows=max_rows_per_epoch,
            skips_truncations=on_truncate == "skip",
            timeout_s=timeout_s,
        )


def _included_columns(
    where: str,
    include: Sequence[str] | Mapping[str, str],
    about: Mapping[str, pa.DataType],
    *,
    several: bool,
) -> dict[str, str]:
    """Return the kind of each included column → its name; raise if a kind is unknown."""
    kinds_or_names = [include] if isinstance(include, str) else include
    included = dict(
        kinds_or_names.items()
        if isinstance(kinds_or_names, Mapping)
        else zip(kinds_or_names, kinds_or_names, strict=True)
    )
    if unknown := [kind for kind in included if kind not in about]:
        raise InvalidFlowError(
            f"{where}: include= has {unknown[0]!r}, which changes do not have.",
            remedy=f"They have {listing(list(about))}.",
        )
    if several and "table" not in included:
        raise InvalidFlowError(
            f"{where} reads several tables, but its rows do not show their table.",
            remedy='Give include=["table"], or a source for each table.',
        )
    return included


class TableSource(Source):
    """Changes of tables, from a snapshot and then from a log."""

    _again: str  # what begins with a snapshot again, as in "a new checkpoint"
    _decoding: Decoding
    _reads_ahead = False  # the log is read while the snapshot is, since the server decodes it

    def __init__(self, server: TableServer, options: TableSourceOptions) -> None:
        self._server: Any = server
        self._options = options
        self._init_unpickled()

    def _init_unpickled(self) -> None:
        """Initialise the fields that are not pickled: connections, and the times of checks."""
        self._control: Any = None
        self._snapshot: Any = None
        self._stream: LogStream | None = None
        self._last_advanced_s = self._last_checked_s = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections."""
        fresh = type(self).__new__(type(self))
        vars(fresh).update(vars(self))
        fresh._init_unpickled()  # noqa: SLF001  its own
        return vars(fresh)

    def __repr__(self) -> str:
        names = self._options.tables
        tables = names[0] if len(names) == 1 else list(names)
        return f"gw.sources.{self._source_call_text(repr(tables))}"

    @property
    def _start_again(self) -> str:
        """Remedy if rows that were read before do not fit."""
        return f"Start with {self._again}, so that the query begins with a snapshot."

    # -- what a database adds ---------------------------------------------------------------------

    @abstractmethod
    def _source_call_text(self, tables: str) -> str:
        """Return the call that creates the source."""

    @abstractmethod
    def _read_table(self, connection: Any, name: str) -> ChangedTable:
        """Return the description of a table; raise if its changes cannot be read."""

    @abstractmethod
    def _first_log_place(self, connection: Any) -> int:
        """Return the place in the log from which a query without a snapshot reads."""

    @abstractmethod
    def _end_of_log(self, connection: Any) -> int:
        """Return the position up to which the server's log is written."""

    @abstractmethod
    def _server_identity(self) -> dict[str, Any]:
        """Return the fields of a position that identify the server."""

    @abstractmethod
    def _check_tables(self) -> None:
        """Raise if changes of a table no longer arrive, which the log does not show."""

    @abstractmethod
    def _new_snapshot(self) -> TableSnapshot:
        """Return a consistent view of the tables as they are now."""

    @abstractmethod
    def _parts_of_range(
        self,
        snapshot: Any,
        number: int,
        after: Key | None,
        up_to: Key | None,
        parallelism: int,
    ) -> Iterator[tuple[int | None, int | None, Any]]:
        """Yield number of rows, bytes and payload of parts of a range of a table's keys."""

    @abstractmethod
    def _read_part(self, payload: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part of the snapshot."""

    @abstractmethod
    def _place_text(self, position: Position) -> str:
        """Return the place of a position in the log, in the database's notation."""

    def _position_at(self, position: Position, place: LogPlace) -> dict[str, Any]:
        """Return a position with another place."""
        return {**position, "lsn": place.lsn, "within": place.within}

    # -- what the rows are ------------------------------------------------------------------------

    @cached_property
    def _catalogued_tables(self) -> tuple[ChangedTable, ...]:
        """Tables, as the catalogue described them at first use."""
        with self._server.connect() as connection:
            return self._read_tables(connection)

    @cached_property
    def _row_layout(self) -> RowLayout:
        """Columns of the rows."""
        first_table = self._catalogued_tables[0]
        options = self._options
        columns = options.schema
        if columns is None:
            fields = [
                pa.field(column_.name, column_.natural)
                for column_ in first_table.columns
                if column_.by_default
            ]
            columns = pa.schema(fields)
        columns = plain_schema(columns)
        read_columns = [first_table.column(name) for name in columns.names]
        may_lack_values = any(
            column is not None and column.may_be_left_out for column in read_columns
        )
        has_unchanged = not options.before and may_lack_values
        layout = RowLayout(columns, options.include, options.about, options.before, has_unchanged)
        names = layout.schema.names
        if len(set(names)) < len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise self._server.error(
                f"would have two columns with the name {repeated!r}",
                f"{CHANGE.name!r} and {UNCHANGED.name!r} are columns of changes. List only other "
                "columns in schema=, and rename those of include=.",
            )
        return layout

    @property
    def schema(self) -> pa.Schema:
        return self._row_layout.schema

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """``"changes"`` if rows before a change are read."""
        return "changes" if self._options.before else "upserts"

    @property
    def table_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that identify a row of the tables."""
        keys = self._catalogued_tables[0].keys
        if len(self._catalogued_tables) > 1 and keys:
            return (self._options.include["table"], *keys)
        return keys

    def _read_tables(self, connection: Any) -> tuple[ChangedTable, ...]:
        """Return the tables as the catalogue describes them; raise if they cannot be read."""
        with self._server.translating("cannot be described"):
            tables = tuple(self._read_table(connection, n) for n in self._options.tables)
        for table in tables:
            if table.keys != tables[0].keys:
                raise self._server.error(
                    f"reads {tables[0].name} and {table.name}, which have different keys",
                    "Use a separate source for each table.",
                )
        return tables

    def _check_columns(self, tables: Sequence[ChangedTable]) -> None:
        """Raise unless all tables have the columns, with types that can be read as requested."""
        layout = self._row_layout
        for table in tables:
            if lacking := [name for name in table.keys if name not in layout.columns.names]:
                raise self._server.error(
                    f"lacks column {lacking[0]!r} in schema=, which is part of the key of "
                    f"{table.name}",
                    f"Add {listing(list(table.keys))} to schema=.",
                )
            for column in layout.columns:
                known = table.column(column.name)
                if known is None:
                    raise self._column_error(table, column, "is not in the table")
                if not known.can_be(column.type):
                    raise self._column_error(
                        table,
                        column,
                        f"has type {known.shown_type}, which {column.type} cannot hold",
                    )

    def _column_error(self, table: ChangedTable, column: pa.Field, what: str) -> SourceError:
        """Return the error for a column that cannot be read."""
        error: SourceError = self._server.error(
            f"reads column {column.name!r} of {table.name}, which {what}",
            "If columns were dropped or renamed, or their types changed, they do not fit the "
            f"rows read before. List the current columns in schema=, and s{self._start_again[1:]}",
            table=table.name,
            column=column.name,
        )
        return error

    # -- life cycle -------------------------------------------------------------------------------

    def _open_tables(self, connection: Any, position: Position | None) -> tuple[ChangedTable, ...]:
        """Read and check the tables; raise if the position belongs to others."""
        tables = self._read_tables(connection)
        self._check_columns(tables)
        self.__dict__["_catalogued_tables"] = tables
        if position is None:
            return tables
        for table, oid in zip(tables, position["tables"], strict=True):
            if table.oid != oid:
                raise self._server.error(
                    f"has read a table {table.name} that was dropped and created again",
                    self._start_again,
                    table=table.name,
                )
        if added := [n for n in self._row_layout.columns.names if n not in position["columns"]]:
            raise self._server.error(
                f"has read rows without the column {added[0]!r}, which they would lack",
                f"Use the former columns in schema=: {listing(position['columns'])}; to add the "
                f"column: {self._start_again[0].lower()}{self._start_again[1:]}",
                column=added[0],
            )
        return tables

    def close(self) -> None:
        """Close the connections; the snapshot ends with them."""
        if self._stream is not None:
            self._stream.close()
        if self._snapshot is not None:
            self._snapshot.close()
        if self._control is not None:
            self._control.close()
        self._stream = self._snapshot = self._control = None

    def _open_connection(self) -> Any:
        """Return the connection for queries, reopened if it was lost."""
        if self._control is None or self._is_closed(self._control):
            self._control = self._server.try_connect()
        return self._control

    @abstractmethod
    def _is_closed(self, connection: Any) -> bool:
        """Return whether a connection is lost."""

    # -- positions --------------------------------------------------------------------------------

    def start(self) -> Position:
        position: dict[str, Any] = {
            **self._server_identity(),
            "tables": [table.oid for table in self._catalogued_tables],
            "columns": list(self._row_layout.columns.names),
            "snapshot": None,
            "segments": [],
        }
        if self._options.snapshot:
            lsn = self._reading_at_moment().lsn
            position["snapshot"] = [0, None, lsn]
        else:
            lsn = self._first_log_place(self._open_connection())
        return self._position_at(position, LogPlace(lsn, 0))

    def end(self, position: Position) -> Position:
        """Return the current end of the log, after the snapshot."""
        with self._server.translating("cannot look up the end of its log"):
            end = self._end_of_log(self._open_connection())
        after = position if position["snapshot"] is None else self._snapshot_end(position)
        if LogPlace(end, 0) <= _place_of_position(after):
            return after
        return self._after_changes(after, LogPlace(end, 0))

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after the next part of the snapshot, or after commits.

        `limit`: rows of the snapshot, or changes; an update may be two rows.
        """
        limits = [max_rows for max_rows in (limit, self._options.max_rows) if max_rows is not None]
        max_rows = min(limits, default=None)
        stream = self._opened_stream()
        if position["snapshot"] is not None:
            if self._reads_ahead:
                stream.read_ahead(self._open_connection, _place_of_position(position))
            return self._next_part(position, max_rows, until)
        begin, whole = _place_of_position(position), self._options.whole_transactions
        stop = None if until is None else _place_of_position(until)
        changes = EVERYTHING - 1 if max_rows is None else max_rows
        with self._server.translating("cannot be read"):
            up_to_date = stream.pump(
                self._open_connection, begin, changes=changes, until=stop, whole=whole
            )
        place = stream.place_after(begin, changes=changes, until=stop, whole=whole)
        now_s = time.monotonic()
        if place != begin:
            self._last_advanced_s = now_s
            return self._after_changes(position, place)
        if up_to_date and now_s - self._last_checked_s > _ADVANCE_S:
            self._last_checked_s = now_s
            self._check_tables()
        if until is None and up_to_date and now_s - self._last_advanced_s > _ADVANCE_S:
            self._last_advanced_s = now_s
            return self._after_changes(position, max(place, LogPlace(stream.reached, 0)))
        return position

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether `position` is before `other`."""
        if (position["snapshot"] is None) != (other["snapshot"] is None):
            return other["snapshot"] is None
        if position["snapshot"] is not None:  # keys are in the server's order
            return bool(position["snapshot"][0] < other["snapshot"][0])
        return _place_of_position(position) < _place_of_position(other)

    def describe(self, position: Position) -> dict[str, Any]:
        described: dict[str, Any] = {"lsn": self._place_text(position)}
        if position["within"]:
            described["changes"] = position["within"]
        if position["snapshot"] is not None:
            number, key, _ = position["snapshot"]
            described["snapshot"] = {"table": self._options.tables[number], "key": key}
        return described

    def committed(self, position: Position) -> None:
        """Forget committed changes; the server may remove that part of its log."""
        if position["snapshot"] is None:
            if self._snapshot is not None:
                self._snapshot.close()
                self._snapshot = None
            if self._stream is not None:
                self._stream.confirm(_place_of_position(position))

    def _oldest_us(self, position: Position) -> int | None:
        """Return the time of the next commit after a position, if it is in the buffer."""
        if self._stream is None or position["snapshot"] is not None:
            return None
        following = next(self._stream.between(_place_of_position(position), None), None)
        return None if following is None else following[0].time_us

    def _after_changes(self, position: Position, place: LogPlace) -> Position:
        """Return a position whose changes are read up to a place."""
        segments = position["segments"]
        if all(lsn <= place.lsn for _, _, lsn in segments):
            segments = []
        return self._position_at({**position, "segments": segments}, place)

    def _opened_stream(self) -> LogStream:
        """Return the stream of the log."""
        assert self._stream is not None, "it is open"
        return self._stream

    # -- snapshot ---------------------------------------------------------------------------------

    def _reading_at_moment(self) -> Any:
        """Return the current consistent view, or begin another one."""
        if self._snapshot is None or self._snapshot.closed:
            self._snapshot = self._new_snapshot()
        return self._snapshot

    def _snapshot_end(self, position: Position) -> Position:
        """Return the position after the snapshot, once it is read at the current view."""
        lsn = self._reading_at_moment().lsn
        segments = [
            *self._segments_before(position, lsn),
            [len(self._catalogued_tables), None, lsn],
        ]
        if all(moment <= position["lsn"] for _, _, moment in segments):
            segments = []
        return {**position, "snapshot": None, "segments": segments}

    def _segments_before(self, position: Position, lsn: int) -> list[list[Any]]:
        """Return the segments before a position of the snapshot, if the rest is read at `lsn`."""
        number, key, moment = position["snapshot"]
        closed = [] if moment == lsn else [[number, key, moment]]
        return [*position["segments"], *closed]

    def _next_part(self, position: Position, limit: int | None, until: Position | None) -> Position:
        """Return the position after the next rows of the snapshot."""
        rows = _PART_ROWS if limit is None else limit
        snapshot = self._reading_at_moment()
        number, key, _ = position["snapshot"]
        end_snapshot = None if until is None else until["snapshot"]
        while number < len(self._catalogued_tables):
            up_to = None
            if end_snapshot is not None and number == end_snapshot[0]:
                if end_snapshot[1] is None or end_snapshot[1] == key:
                    break
                up_to = end_snapshot[1]
            table = self._catalogued_tables[number]
            if not table.keys:
                number, key = number + 1, None
                break
            with self._server.translating(f"cannot read {table.name}"):
                count, last_key = snapshot.keys_after(table, key, up_to, rows)
            if count == rows or (count and up_to is not None):
                key = last_key
                break
            number, key = number + 1, None
            if count:
                break
        if number == len(self._catalogued_tables):
            return self._snapshot_end(position)
        segments = self._segments_before(position, snapshot.lsn)
        return {**position, "snapshot": [number, key, snapshot.lsn], "segments": segments}

    def _snapshot_splits(self, begin: Position, end: Position, parallelism: int) -> Iterator[Split]:
        """Yield splits of the rows of the snapshot between two positions."""
        snapshot = self._reading_at_moment()
        first_table, first_key, _ = begin["snapshot"]
        last_table, last_key, snapshot_lsn = end["snapshot"] or [
            len(self._catalogued_tables),
            None,
            snapshot.lsn,
        ]
        if snapshot_lsn != snapshot.lsn:
            raise self._server.error(
                "lost the connection of its snapshot",
                "Start the query again: it continues with the remaining rows.",
            )
        for number in range(first_table, min(last_table + 1, len(self._catalogued_tables))):
            table = self._catalogued_tables[number]
            begin_key = first_key if number == first_table else None
            end_key = last_key if number == last_table else None
            if number == last_table and end_key is None:
                break
            parts = self._parts_of_range(snapshot, number, begin_key, end_key, parallelism)
            while True:
                with self._server.translating(f"cannot read {table.name}"):
                    part = next(parts, None)
                if part is None:
                    break
                rows, size_bytes, payload = part
                description = f"{table.name} from {begin_key} to {end_key}"
                yield Split(rows=rows, size_bytes=size_bytes, what=description, payload=payload)

    # -- changes ----------------------------------------------------------------------------------

    def _checked_reading(
        self,
        number: int,
        places: Mapping[str, int],
        can_be: Callable[[int, pa.DataType], bool],
        keys: set[str] | None,
    ) -> None:
        """Raise unless changes of a table have its columns and keys.

        `places`: name of a column → its place; `can_be`: whether values of a place can be read as a
        type; `keys`: names of the columns that identify a row, ``None`` if changes have whole rows.
        """
        table = self._catalogued_tables[number]
        for field in self._row_layout.columns:
            place = places.get(field.name)
            if place is None:
                raise self._column_error(table, field, "is missing from its changes")
            if not can_be(place, field.type):
                raise self._column_error(
                    table, field, f"has a type in its changes that {field.type} cannot hold"
                )
        if keys is not None and keys != set(table.keys):
            raise self._key_error(table, table.keys, sorted(keys))
        catalogued_names = {column.name for column in table.columns}
        if added := [name for name in places if name not in catalogued_names]:
            self.report(
                f"{self._server.where}: {table.name} has new columns {listing(added)}, which are "
                "not read until a new query lists them."
            )

    def _key_error(
        self, table: ChangedTable, before: Sequence[str], now: Sequence[str]
    ) -> SourceError:
        """Return the error for a table whose key has changed."""
        error: SourceError = self._server.error(
            f"reads changes of {table.name} by {listing(list(before))}, but its key is now "
            f"{listing(list(now)) or 'none'}",
            self._start_again,
            table=table.name,
        )
        return error

    def _truncation_error(self, table: ChangedTable) -> SourceError | None:
        """Return the error for a truncation of a table, unless they are skipped."""
        if self._options.skips_truncations:
            self.report(
                f"{self._server.where}: {table.name} was truncated, but its rows stay in the "
                "target."
            )
            return None
        error: SourceError = self._server.error(
            f"has read that {table.name} was truncated, but the log does not list the deleted rows",
            'To keep them in the target, use on_truncate="skip". To begin again with the '
            f"table's current rows, use an empty target and {self._again}. Avoid this by DELETE "
            "instead of TRUNCATE.",
            table=table.name,
        )
        return error

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return splits of key ranges of the snapshot, and of changes that are in the buffer."""
        splits: list[Split] = []
        if begin["snapshot"] is not None:
            splits += self._snapshot_splits(begin, end, parallelism)
        if end["snapshot"] is not None or _place_of_position(end) <= _place_of_position(begin):
            return splits
        stream = self._opened_stream()
        first, last = _place_of_position(begin), _place_of_position(end)
        with self._server.translating("cannot be read"):
            stream.fill(self._open_connection, first, last, whole=self._options.whole_transactions)
        blocks: list[Block] = []
        for transaction, start, stop in stream.between(first, last):
            for number in range(start, stop):
                place = number - transaction.freed
                reading = transaction.relations[place]
                if not blocks or blocks[-1].reading is not reading:
                    blocks.append(Block(reading))
                blocks[-1].messages.append(transaction.messages[place])
                blocks[-1].lsns.append(transaction.lsn)
                blocks[-1].times_us.append(transaction.time_us)
                blocks[-1].xids.append(transaction.xid)
        segments = begin["segments"] if begin["snapshot"] is None else end["segments"]
        return splits + splits_of_changes(
            blocks, segments, parallelism, self._decoding, self._place_text(begin)
        )

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split."""
        if isinstance(split.payload, TableChanges):
            yield from self._read_changes(split.payload, columns)
        else:
            yield from self._read_part(split.payload, columns)

    def _read_changes(
        self, changes: TableChanges, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that changes insert and delete."""
        segments = [Segment(Mark(number, key), lsn) for number, key, lsn in changes.segments]
        for block in changes.blocks:
            table = self._catalogued_tables[block.reading.table]
            yield self._translating_value_errors(
                table,
                lambda b=block, t=table: rows_of_changes(
                    b, self._row_layout, t, columns, segments=segments, decoding=self._decoding
                ),
            )

    def _translating_value_errors(self, table: ChangedTable, rows: Any) -> pa.RecordBatch:
        """Return the result of `rows`; errors about values name the table."""
        try:
            batch: pa.RecordBatch = rows()
        except UndecodableChangeError as error:
            raise self._server.error(
                f"cannot read a change of {table.name}: {error}",
                f"{self._complete_changes(table)} And s{self._start_again[1:]}",
                table=table.name,
            ) from None
        except ValueError as error:
            raise self._server.error(
                f"cannot read a value of {table.name}: {error}",
                'Read the column as text, by its type "string" in schema=.',
                table=table.name,
            ) from None
        return batch

    @abstractmethod
    def _complete_changes(self, table: Any) -> str:
        """Return the statement that makes the server log whole rows of a table."""


def _place_of_position(position: Position) -> LogPlace:
    """Return a position's place in the stream of changes."""
    return LogPlace(position["lsn"], position["within"])
