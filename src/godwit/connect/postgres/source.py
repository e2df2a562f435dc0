"""Changes of PostgreSQL tables: `gw.sources.postgres`.

A position says which part of the snapshot was read, and after which commit of the log the query
continues.  First the tables are read in order of their keys, as they were at a moment that the
server exports (`godwit.connect.postgres.snapshot`), and then their changes from that moment on, of
a replication slot (`godwit.connect.postgres.slot`).

The commit record is the only truth: the slot is advanced to a position that is committed, never
beyond.  So a slot that begins after the query's position was read by something else.
"""

from __future__ import annotations

import time
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
import pyarrow as pa

from godwit.columns.signed import CHANGE, UNCHANGED
from godwit.columns.types import plain_schema, to_schema
from godwit.connect.postgres.catalog import (
    Server,
    SourceTable,
    check_identity,
    check_published,
    create_slot,
    end_of_log,
    identify,
    lsn_text,
    prepare_publication,
    read_slot,
    read_state,
    read_table,
)
from godwit.connect.postgres.changes import (
    Block,
    Changes,
    Layout,
    Reading,
    UndecodableChangeError,
    rows_of_changes,
    rows_of_snapshot,
    splits_of_changes,
)
from godwit.connect.postgres.slot import EVERYTHING, ChangeStream, Place
from godwit.connect.postgres.snapshot import (
    Mark,
    Segment,
    Snapshot,
    begin_at,
    copy_range,
)
from godwit.connect.postgres.types import read_types
from godwit.model.naming import listing
from godwit.model.text import human_bytes
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.columns.signed import Kind
    from godwit.columns.types import SchemaLike
    from godwit.connect.postgres import pgoutput
    from godwit.connect.postgres.connection import Connection
    from godwit.model.errors import SourceError
    from godwit.sources.source import Position

_PART_ROWS: Final = 250_000  # of the snapshot, in an epoch
_ADVANCE_S: Final = 5.0
"""While other tables change, the position follows the log this often, in epochs without rows, so
that the server can remove that part."""


class PostgresSource(Source):
    """Changes of tables, from a snapshot and then from a replication slot."""

    def __init__(
        self,
        server: Server,
        tables: Sequence[str],
        *,
        slot: str,
        publication: str,
        schema: SchemaLike | None,
        before: bool,
        snapshot: bool,
        include: Mapping[str, str],
        whole_transactions: bool,
        max_rows_per_epoch: int | None,
        on_truncate: Literal["refuse", "skip"],
        timeout_s: float,
    ) -> None:
        self._server, self._names = server, tuple(tables)
        self._slot, self._publication = slot, publication
        self._asked = None if schema is None else to_schema(schema, where="The schema of a source")
        self._before, self._takes_snapshot, self._include = before, snapshot, dict(include)
        self._whole, self._max_rows = whole_transactions, max_rows_per_epoch
        self._skips_truncations, self._timeout_s = on_truncate == "skip", timeout_s
        self._prepare()

    def _prepare(self) -> None:
        """Initialise the fields that are not pickled: connections, and the times of looks."""
        self._control: Connection | None = None
        self._snapshot: Snapshot | None = None
        self._stream: ChangeStream | None = None
        self._identity: tuple[str, int] | None = None
        self._types: dict[tuple[int, int], Any] = {}
        self._states: list[dict[str, Any]] = []  # of the tables, as their rows were read
        self._advanced_s = self._checked_s = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        """Leave connections behind."""
        fresh = type(self).__new__(type(self))
        vars(fresh).update(vars(self))
        fresh._prepare()  # noqa: SLF001  its own
        return vars(fresh)

    def __repr__(self) -> str:
        tables = self._names[0] if len(self._names) == 1 else list(self._names)
        return f"gw.sources.postgres({self._server.name!r}, {tables!r}, slot={self._slot!r})"

    # -- what the rows are ------------------------------------------------------------------------

    @cached_property
    def _tables(self) -> tuple[SourceTable, ...]:
        """Tables, as the catalogue described them when they were first asked for."""
        with self._server.connect() as connection:
            return self._read_tables(connection)

    @cached_property
    def _layout(self) -> Layout:
        """Columns of the rows."""
        first = self._tables[0]
        columns = self._asked
        if columns is None:
            columns = pa.schema([pa.field(c.name, c.values.natural) for c in first.columns])
        columns = plain_schema(columns)
        named = [first.column(name) for name in columns.names]
        left_out = any(column is not None and column.may_be_left_out for column in named)
        has_unchanged = not self._before and left_out and first.identity != "f"
        layout = Layout(columns, self._include, self._before, has_unchanged)
        names = layout.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise self._server.error(
                f"would have two columns called {twice!r}",
                f"{CHANGE.name!r} and {UNCHANGED.name!r} are columns of changes. Name the other "
                "columns in schema=, and rename those of include=.",
            )
        return layout

    @property
    def schema(self) -> pa.Schema:
        return self._layout.schema

    @property
    def identity(self) -> str:
        """Slot and tables; the position has the identity of the server."""
        return f"PostgreSQL slot {self._slot} of {' '.join(self._names)}"

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """``"changes"`` if rows before a change are read."""
        return "changes" if self._before else "upserts"

    @property
    def table_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that identify a row of the tables."""
        keys = self._tables[0].keys
        if len(self._tables) > 1 and keys:
            return (self._include["table"], *keys)
        return keys

    def _read_tables(self, connection: Connection) -> tuple[SourceTable, ...]:
        """Return the tables as the catalogue describes them; raise if they cannot be read."""
        with self._server.translating("cannot be described"):
            tables = tuple(read_table(connection, self._server, name) for name in self._names)
        for table in tables:
            check_identity(self._server, table, before=self._before)
            if table.keys != tables[0].keys:
                raise self._server.error(
                    f"reads {tables[0].name} and {table.name}, which have different keys",
                    "Read each by a source of its own.",
                )
        return tables

    def _check_columns(self, tables: Sequence[SourceTable]) -> None:
        """Raise unless all tables have the columns, and of types that can be read as asked."""
        layout = self._layout
        for table in tables:
            if lacking := [name for name in table.keys if name not in layout.columns.names]:
                raise self._server.error(
                    f"has no column {lacking[0]!r} in schema=, which identifies a row of "
                    f"{table.name}",
                    f"Name {listing(list(table.keys))} in schema=.",
                )
            for column in layout.columns:
                known = table.column(column.name)
                if known is None:
                    raise self._column_error(table, column, "is not in the table")
                if not known.values.can_be(column.type):
                    raise self._column_error(
                        table,
                        column,
                        f"has type {known.shown_type}, which {column.type} does not hold",
                    )

    def _column_error(self, table: SourceTable, column: pa.Field, what: str) -> SourceError:
        """Return the error for a column that cannot be read."""
        return self._server.error(
            f"reads column {column.name!r} of {table.name}, which {what}",
            "Columns that were dropped, renamed or changed their type do not fit the rows that "
            "were read. Name the present columns in schema=, and start with a new slot and a new "
            "checkpoint, so that the query begins with a snapshot.",
            table=table.name,
            column=column.name,
        )

    # -- life cycle -------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Check server, tables, publication and slot; raise if the position is not theirs."""
        self.close()
        self._control = connection = self._server.connect()
        self._identity = identify(self._server, connection)
        tables = self._read_tables(connection)
        self._check_columns(tables)
        self.__dict__["_tables"] = tables
        with self._server.translating("cannot be described"):
            states = [read_state(connection, table.oid) for table in tables]
        self._states = [state for state in states if state is not None]
        if position is not None:
            self._check_position(position)
            self._states = position.get("states", self._states)
            self._check_states()
        prepare_publication(
            connection,
            self._server,
            self._publication,
            tables,
            self._layout.columns.names,
            truncations=not self._skips_truncations,
        )
        slot = read_slot(connection, self._server, self._slot)
        self._stream = ChangeStream(
            self._server,
            self._slot,
            self._publication,
            read=self._reading_of,
            truncated=self._problem_of_truncation,
            timeout_s=self._timeout_s,
        )
        if slot is not None:
            if slot.kept_bytes >= 1 << 30:
                self.report(
                    f"{self._server.where}: the server keeps {human_bytes(slot.kept_bytes)} of log "
                    f"for the slot {self._slot!r}, until it is read."
                )
        elif position is not None:
            raise self._stream.missing_slot()
        else:
            create_slot(self._server, self._slot)

    def _check_position(self, position: Position) -> None:
        """Raise if a position is of another server, or of tables that were created again."""
        assert self._identity is not None
        system, timeline = self._identity
        start_again = (
            "Start with a new slot and a new checkpoint, so that the query begins with a snapshot."
        )
        if position["system"] != system:
            raise self._server.error(
                f"has read another database system: {position['system']}, and this is {system}",
                f"Connect to the former one. {start_again}",
            )
        if position["timeline"] != timeline:
            raise self._server.error(
                f"has read timeline {position['timeline']} of the server, and this is timeline "
                f"{timeline}: another server took over, or it was restored from a backup, and may "
                "lack changes that were read",
                start_again,
            )
        for table, oid in zip(self._tables, position["tables"], strict=True):
            if table.oid != oid:
                raise self._server.error(
                    f"has read a table {table.name} that was dropped and created again",
                    start_again,
                    table=table.name,
                )
        if added := [n for n in self._layout.columns.names if n not in position["columns"]]:
            raise self._server.error(
                f"has read rows without the column {added[0]!r}, and would have them without it",
                f"Name in schema= the columns as before: {listing(position['columns'])}; to add "
                f"the column: {start_again[0].lower()}{start_again[1:]}",
                column=added[0],
            )

    def close(self) -> None:
        """Close the connections; the snapshot ends with them."""
        if self._stream is not None:
            self._stream.close()
        if self._snapshot is not None:
            self._snapshot.close()
        if self._control is not None:
            self._control.close()
        self._stream = self._snapshot = self._control = None

    def _connection(self) -> Connection:
        """Return the connection for questions, opened again if it was lost."""
        if self._control is None or self._control.closed:
            self._control = self._server.try_connect()
        return self._control

    # -- positions --------------------------------------------------------------------------------

    def start(self) -> Position:
        assert self._identity is not None, "it is open"
        system, timeline = self._identity
        position: dict[str, Any] = {
            "system": system,
            "timeline": timeline,
            "tables": [table.oid for table in self._tables],
            "columns": list(self._layout.columns.names),
            "states": self._states,
            "lsn": 0,
            "within": 0,
            "snapshot": None,
            "segments": [],
        }
        if self._takes_snapshot:
            position["lsn"] = self._moment().lsn
            position["snapshot"] = [0, None, position["lsn"]]
        else:
            slot = read_slot(self._connection(), self._server, self._slot)
            assert slot is not None, "it was there or created"
            position["lsn"] = slot.confirmed
        return position

    def end(self, position: Position) -> Position:
        """Return the present end of the log, after the snapshot."""
        with self._server.translating("cannot tell where its log ends"):
            end = end_of_log(self._connection())
        after = position if position["snapshot"] is None else self._snapshot_end(position)
        if Place(end, 0) <= _place(after):
            return after
        return self._after_changes(after, Place(end, 0))

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after the next part of the snapshot, or after commits.

        `limit`: rows of the snapshot, or changes; an update may be two rows.
        """
        limits = [most for most in (limit, self._max_rows) if most is not None]
        most = min(limits, default=None)
        if position["snapshot"] is not None:
            return self._next_part(position, most, until)
        stream = self._opened_stream()
        begin = _place(position)
        stop = None if until is None else _place(until)
        changes = EVERYTHING - 1 if most is None else most
        with self._server.translating("cannot be read"):
            up_to_date = stream.pump(
                self._connection, begin, changes=changes, until=stop, whole=self._whole
            )
        place = stream.place_after(begin, changes=changes, until=stop, whole=self._whole)
        now_s = time.monotonic()
        if place != begin:
            self._advanced_s = now_s
            return self._after_changes(position, place)
        if up_to_date and now_s - self._checked_s > _ADVANCE_S:
            self._checked_s = now_s
            self._check_tables()
        if until is None and up_to_date and now_s - self._advanced_s > _ADVANCE_S:
            self._advanced_s = now_s
            return self._after_changes(position, max(place, Place(stream.reached, 0)))
        return position

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether `position` is before `other`."""
        if (position["snapshot"] is None) != (other["snapshot"] is None):
            return other["snapshot"] is None
        if position["snapshot"] is not None:  # keys are in the server's order
            return bool(position["snapshot"][0] < other["snapshot"][0])
        return _place(position) < _place(other)

    def describe(self, position: Position) -> dict[str, Any]:
        described: dict[str, Any] = {"lsn": lsn_text(position["lsn"])}
        if position["within"]:
            described["changes"] = position["within"]
        if position["snapshot"] is not None:
            number, key, _ = position["snapshot"]
            described["snapshot"] = {"table": self._names[number], "key": key}
        return described

    def lag(self, position: Position) -> Lag:
        """Return the bytes of log that the server keeps for the slot."""
        with self._server.translating("cannot tell how far it is behind"):
            slot = read_slot(self._connection(), self._server, self._slot)
        oldest = None
        if self._stream is not None and position["snapshot"] is None:
            begin = _place(position)
            following = next(self._stream.between(begin, None), None)
            oldest = None if following is None else following[0].time_us
        return Lag(size_bytes=None if slot is None else slot.kept_bytes, oldest_us=oldest)

    def committed(self, position: Position) -> None:
        """Let the slot follow: the server may remove its log up to a committed position."""
        if position["snapshot"] is None:
            if self._snapshot is not None:
                self._snapshot.close()
                self._snapshot = None
            if self._stream is not None:
                self._stream.confirm(_place(position))

    def _after_changes(self, position: Position, place: Place) -> Position:
        """Return a position whose changes are read up to a place."""
        segments = position["segments"]
        if all(lsn <= place.lsn for _, _, lsn in segments):
            segments = []
        return {
            **position,
            "states": self._states,
            "lsn": place.lsn,
            "within": place.within,
            "segments": segments,
        }

    def _check_tables(self) -> None:
        """Raise if a table was dropped, or some of its changes are not published any more."""
        with self._server.translating("cannot look up its tables"):
            check_published(
                self._connection(),
                self._server,
                self._publication,
                self._tables,
                self._layout.columns.names,
                truncations=not self._skips_truncations,
            )
            self._check_states()

    def _check_states(self) -> None:
        """Raise, or warn, if rows were changed that the log does not name."""
        for number, table in enumerate(self._tables):
            self._check_state(number, table)

    def _check_state(self, number: int, table: SourceTable, *, keys: bool = True) -> None:
        """Raise, or warn, if rows of a table were changed that the log does not name.

        `keys`: the log does not say which they are.
        """
        state, now = self._states[number], read_state(self._connection(), table.oid)
        if now is None:  # the table is gone, and its last changes may be read yet
            return
        if keys and not self._before and now["keys"] != state["keys"]:
            raise self._key_error(table, state["keys"], now["keys"])
        for column in self._layout.columns:
            if now["columns"].get(column.name, -1) not in {-1, state["columns"][column.name]}:
                raise self._column_error(table, column, "was dropped and added again")
        if any(now["files"].get(name) != file for name, file in state["files"].items()):
            self.report(
                f"{self._server.where}: {table.name} was rewritten, or a partition of it was "
                "rewritten, truncated, detached or dropped. If that changed rows, the log does not "
                "have it: begin with a new slot and checkpoint."
            )
        self._states = [*self._states]
        self._states[number] = {**state, "files": now["files"]}

    def _key_error(
        self, table: SourceTable, before: Sequence[str], now: Sequence[str]
    ) -> SourceError:
        """Return the error for a table whose rows another key identifies now."""
        return self._server.error(
            f"reads changes of {table.name} by {listing(list(before))}, and the table's "
            f"replica identity is {listing(list(now)) or 'none'} now",
            "Start with a new slot and a new checkpoint, so that the query begins with a snapshot.",
            table=table.name,
        )

    def _opened_stream(self) -> ChangeStream:
        """Return the stream of the slot."""
        assert self._stream is not None, "it is open"
        return self._stream

    # -- snapshot ---------------------------------------------------------------------------------

    def _moment(self) -> Snapshot:
        """Return the moment that is exported, or export another one."""
        if self._snapshot is None or self._snapshot.closed:
            self._snapshot = Snapshot(self._server, self._tables)
        return self._snapshot

    def _snapshot_end(self, position: Position) -> Position:
        """Return a position of the snapshot once all of it is read at the present moment."""
        lsn = self._moment().lsn
        segments = [*self._segments_before(position, lsn), [len(self._tables), None, lsn]]
        if all(moment <= position["lsn"] for _, _, moment in segments):
            segments = []
        return {**position, "snapshot": None, "segments": segments}

    def _segments_before(self, position: Position, lsn: int) -> list[list[Any]]:
        """Return the segments before a position of the snapshot, if the rest is of moment `lsn`."""
        number, key, moment = position["snapshot"]
        closed = [] if moment == lsn else [[number, key, moment]]
        return [*position["segments"], *closed]

    def _next_part(self, position: Position, limit: int | None, until: Position | None) -> Position:
        """Return the position after the next rows of the snapshot."""
        rows = _PART_ROWS if limit is None else limit
        snapshot = self._moment()
        number, key, _ = position["snapshot"]
        last = None if until is None else until["snapshot"]
        while number < len(self._tables):
            up_to = None
            if last is not None and number == last[0]:
                if last[1] is None or last[1] == key:
                    break
                up_to = last[1]
            table = self._tables[number]
            if not table.keys:
                number, key = number + 1, None
                break
            with self._server.translating(f"cannot read {table.name}"):
                count, keys = snapshot.keys_after(table, key, up_to, rows, rows)
            if count == rows or (count and up_to is not None):
                key = keys[-1]
                break
            number, key = number + 1, None
            if count:
                break
        if number == len(self._tables):
            return self._snapshot_end(position)
        segments = self._segments_before(position, snapshot.lsn)
        return {**position, "snapshot": [number, key, snapshot.lsn], "segments": segments}

    def _snapshot_splits(self, begin: Position, end: Position, parallelism: int) -> Iterator[Split]:
        """Yield splits of the rows of the snapshot between two positions."""
        snapshot = self._moment()
        first, after, _ = begin["snapshot"]
        last, up_to, moment = end["snapshot"] or [len(self._tables), None, snapshot.lsn]
        if moment != snapshot.lsn:
            raise self._server.error(
                "lost the connection that its snapshot depends on",
                "Start the query again: it continues with the rows that are left.",
            )
        for number in range(first, min(last + 1, len(self._tables))):
            table = self._tables[number]
            begin_key = after if number == first else None
            end_key = up_to if number == last else None
            if number == last and end_key is None:
                break
            with self._server.translating(f"cannot read {table.name}"):
                parts = snapshot.parts_of(table, begin_key, end_key, parallelism)
            for size, first_key, last_key in parts:
                payload = (number, snapshot.token, moment, first_key, last_key)
                what = f"{table.name} from {first_key} to {last_key}"
                yield Split(rows=size, size_bytes=None, what=what, payload=payload)

    # -- changes ----------------------------------------------------------------------------------

    def _reading_of(self, relation: pgoutput.Relation) -> Reading | None:
        """Return where columns are in a table's changes; raise if they do not fit any more."""
        number = next((n for n, t in enumerate(self._tables) if t.oid == relation.oid), None)
        if number is None:
            return None
        table = self._tables[number]
        places = {column.name: place for place, column in enumerate(relation.columns)}
        missing = [(c.type_oid, c.modifier) for c in relation.columns]
        if any(key not in self._types for key in missing):
            self._types |= read_types(self._connection(), missing)
        for field in self._layout.columns:
            place = places.get(field.name)
            if place is None:
                raise self._column_error(table, field, "its changes do not have")
            column = relation.columns[place]
            if not self._types[column.type_oid, column.modifier].can_be(field.type):
                raise self._column_error(
                    table, field, f"has a type in its changes that {field.type} does not hold"
                )
        keys = {column.name for column in relation.columns if column.in_key}
        if not relation.whole and keys != set(table.keys):
            raise self._key_error(table, table.keys, sorted(keys))
        self._check_state(number, table, keys=relation.whole)
        known = {column.name for column in table.columns}
        if added := [name for name in places if name not in known]:
            self.report(
                f"{self._server.where}: {table.name} has new columns {listing(added)}, which are "
                "not read before a new query names them."
            )
        return Reading(number, places)

    def _problem_of_truncation(self, oids: tuple[int, ...]) -> SourceError | None:
        """Return the error for a truncation of tables, if it concerns the source."""
        table = next((table for table in self._tables if table.oid in oids), None)
        if table is None:
            return None
        if self._skips_truncations:
            self.report(
                f"{self._server.where}: {table.name} was truncated, and its rows stay in the "
                "target."
            )
            return None
        return self._server.error(
            f"has read that {table.name} was truncated, which does not name the deleted rows",
            'To keep them in the target: on_truncate="skip". To begin again with the rows that '
            "the table has now: a new slot, a new checkpoint and an empty target. Use DELETE in "
            "place of TRUNCATE.",
            table=table.name,
        )

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return splits of key ranges of the snapshot, and of changes that are in the buffer."""
        splits: list[Split] = []
        if begin["snapshot"] is not None:
            splits += self._snapshot_splits(begin, end, parallelism)
        if end["snapshot"] is not None or _place(end) <= _place(begin):
            return splits
        stream = self._opened_stream()
        first, last = _place(begin), _place(end)
        with self._server.translating("cannot be read"):
            stream.fill(self._connection, first, last, whole=self._whole)
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
        return splits + splits_of_changes(blocks, segments, parallelism)

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split."""
        if isinstance(split.payload, Changes):
            yield from self._read_changes(split.payload, columns)
            return
        number, token, lsn, after, up_to = split.payload
        table = self._tables[number]
        named = [name for name in columns if name in self._layout.columns.names]
        try:
            with closing(self._server.connect()) as connection:
                begin_at(connection, token)
                for texts in copy_range(connection, table, named, after, up_to):
                    yield self._converted(
                        table,
                        lambda t=texts: rows_of_snapshot(t, self._layout, table, columns, lsn=lsn),
                    )
        except psycopg.Error as error:
            with self._server.translating(f"cannot read {split.what}"):
                raise error from None

    def _read_changes(self, changes: Changes, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that changes insert and delete."""
        segments = [Segment(Mark(number, key), lsn) for number, key, lsn in changes.segments]
        for block in changes.blocks:
            table = self._tables[block.reading.table]
            yield self._converted(
                table,
                lambda b=block, t=table: rows_of_changes(
                    b, self._layout, t, columns, segments=segments, connect=self._server.connect
                ),
            )

    def _converted(self, table: SourceTable, rows: Any) -> pa.RecordBatch:
        """Return the result of a function; errors of values name the table."""
        try:
            batch: pa.RecordBatch = rows()
        except UndecodableChangeError as error:
            raise self._server.error(
                f"cannot read a change of {table.name}: {error}",
                f"ALTER TABLE {table.name} REPLICA IDENTITY FULL; and start with a new slot and a "
                "new checkpoint, so that the query begins with a snapshot.",
                table=table.name,
            ) from None
        except ValueError as error:
            raise self._server.error(
                f"cannot read a value of {table.name}: {error}",
                'Read the column as text, by its type "string" in schema=.',
                table=table.name,
            ) from None
        return batch


def _place(position: Position) -> Place:
    """Return the place in the stream of changes of a position."""
    return Place(position["lsn"], position["within"])
