"""Changes of PostgreSQL tables: `gw.sources.postgres`.

The moment of the snapshot is exported by the server (`godwit.connect.postgres.snapshot`), so any
process reads parts of it; the log is read by a replication slot (`godwit.connect.postgres.slot`).

The commit record is the only truth: the slot is advanced to a position that is committed, never
beyond.  So a slot that begins after the query's position was read by something else.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from godwit.connect.postgres import pgoutput
from godwit.connect.postgres.catalog import (
    PostgresServer,
    PostgresTable,
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
from godwit.connect.postgres.connection import dataset_of_table, place_of_table
from godwit.connect.postgres.slot import ChangeStream
from godwit.connect.postgres.snapshot import PostgresSnapshot, begin_at, copy_range, keys_up_to
from godwit.connect.postgres.types import column_from_texts, read_types, texts_of
from godwit.connect.tables.rows import TableReading, rows_of_snapshot
from godwit.connect.tables.source import TableSource, TableSourceOptions
from godwit.model.text import human_bytes
from godwit.sources.source import Lag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from godwit.connect.postgres.connection import Connection
    from godwit.connect.tables.log import LogPlace
    from godwit.connect.tables.rows import ChangedTable, Key, Row
    from godwit.model.errors import SourceError
    from godwit.sources.source import Position


@dataclass(frozen=True, slots=True)
class PostgresDecoding:
    """Decoder of changes in the format of ``pgoutput``, with values as text."""

    server: PostgresServer

    def change(self, message: bytes, _: TableReading) -> tuple[Row | None, bool, Row | None]:
        """Return the former row, whether it is complete (else only its key), and the new row."""
        return pgoutput.read_change(message)

    def num_rows(self, message: bytes) -> int:
        """Return the maximum number of signed rows that a change yields."""
        return pgoutput.num_signed_rows(message)

    def column(self, values: Row, schema_field: pa.Field, _: TableReading) -> pa.Array:
        """Return stored values as a column."""
        return column_from_texts(texts_of(values), schema_field)

    def key(self, values: Row, table: PostgresTable, reading: TableReading) -> Key:
        """Return the values of a row's key as texts."""
        return [values[reading.places[name]].decode() for name in table.keys]

    def keys_up_to(self, table: PostgresTable, keys: Sequence[Key], bound: Key) -> set[int]:
        """Return the numbers of the keys that are not after `bound`, in the server's order."""
        with self.server.connect() as connection:
            return keys_up_to(connection, table, keys, bound)


class PostgresSource(TableSource):
    """Changes of tables, from a snapshot and then from a replication slot."""

    _again = "a new slot and a new checkpoint"
    _reads_ahead = True

    def __init__(
        self, server: PostgresServer, options: TableSourceOptions, *, slot: str, publication: str
    ) -> None:
        super().__init__(server, options)
        self._slot, self._publication = slot, publication
        self._decoding = PostgresDecoding(server)

    def _init_unpickled(self) -> None:
        super()._init_unpickled()
        self._stream: ChangeStream | None = None
        self._identity: tuple[str, int] | None = None
        self._types: dict[tuple[int, int], Any] = {}
        self._states: list[dict[str, Any]] = []  # of the tables, as their rows were read

    def _source_call_text(self, tables: str) -> str:
        return f"postgres({self._server.name!r}, {tables}, slot={self._slot!r})"

    @property
    def identity(self) -> str:
        """Slot and tables; the position has the identity of the server."""
        return f"PostgreSQL slot {self._slot} of {' '.join(self._options.tables)}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The tables, named as by sinks."""
        return tuple(dataset_of_table(self._server.dsn, name) for name in self._options.tables)

    @property
    def places(self) -> tuple[str, ...]:
        """Texts that identify the tables, as for sinks."""
        return tuple(place_of_table(self._server.dsn, name) for name in self._options.tables)

    def _read_table(self, connection: Connection, name: str) -> PostgresTable:
        table = read_table(connection, self._server, name)
        check_identity(self._server, table, before=self._options.before)
        return table

    # -- life cycle -------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Check server, tables, publication and slot; raise if the position belongs to others."""
        self.close()
        self._control = connection = self._server.connect()
        self._identity = identify(self._server, connection)
        if position is not None:
            self._check_server(position)
        tables: Any = self._open_tables(connection, position)
        with self._server.translating("cannot be described"):
            states = [read_state(connection, table.oid) for table in tables]
        self._states = [state for state in states if state is not None]
        if position is not None:
            self._states = position.get("states", self._states)
            self._check_states()
        prepare_publication(
            connection,
            self._server,
            self._publication,
            tables,
            self._row_layout.columns.names,
            truncations=not self._options.skips_truncations,
        )
        slot = read_slot(connection, self._server, self._slot)
        self._stream = ChangeStream(
            self._server,
            self._slot,
            self._publication,
            read=self._table_reading,
            truncated=self._problem_of_truncation,
            timeout_s=self._options.timeout_s,
        )
        if slot is not None:
            if slot.kept_bytes >= 1 << 30:
                self.report(
                    f"{self._server.where}: the server retains {human_bytes(slot.kept_bytes)} of "
                    f"log for the slot {self._slot!r} until it is read."
                )
        elif position is not None:
            raise self._stream.missing_slot()
        else:
            create_slot(self._server, self._slot)

    def _check_server(self, position: Position) -> None:
        """Raise if a position is from another server."""
        assert self._identity is not None
        system, timeline = self._identity
        if position["system"] != system:
            raise self._server.error(
                f"has read database system {position['system']}, but this is {system}",
                f"Connect to the former server. {self._start_again}",
            )
        if position["timeline"] != timeline:
            raise self._server.error(
                f"has read timeline {position['timeline']} of the server, but this is timeline "
                f"{timeline}: a standby was promoted, or the server was restored from a backup, "
                "and it may lack changes that were read",
                self._start_again,
            )

    def _is_closed(self, connection: Connection) -> bool:
        return connection.closed

    def _server_identity(self) -> dict[str, Any]:
        assert self._identity is not None, "it is open"
        return dict(zip(("system", "timeline"), self._identity, strict=True))

    def _position_at(self, position: Position, place: LogPlace) -> dict[str, Any]:
        return {**super()._position_at(position, place), "states": self._states}

    def _first_log_place(self, connection: Connection) -> int:
        slot = read_slot(connection, self._server, self._slot)
        assert slot is not None, "it exists or was created"
        return slot.confirmed

    def _end_of_log(self, connection: Connection) -> int:
        return end_of_log(connection)

    def _place_text(self, position: Position) -> str:
        return lsn_text(position["lsn"])

    def _complete_changes(self, table: ChangedTable) -> str:
        return f"ALTER TABLE {table.name} REPLICA IDENTITY FULL;"

    def lag(self, position: Position) -> Lag:
        """Return the bytes of log that the server retains for the slot."""
        with self._server.translating("cannot determine its lag"):
            slot = read_slot(self._open_connection(), self._server, self._slot)
        size_bytes = None if slot is None else slot.kept_bytes
        return Lag(size_bytes=size_bytes, oldest_us=self._oldest_us(position))

    def _check_tables(self) -> None:
        tables: Any = self._catalogued_tables
        with self._server.translating("cannot look up its tables"):
            check_published(
                self._open_connection(),
                self._server,
                self._publication,
                tables,
                self._row_layout.columns.names,
                truncations=not self._options.skips_truncations,
            )
            self._check_states()

    def _check_states(self) -> None:
        """Raise, or warn, if rows were changed without being logged."""
        for number, table in enumerate(self._catalogued_tables):
            self._check_state(number, table)

    def _check_state(self, number: int, table: ChangedTable, *, keys: bool = True) -> None:
        """Raise, or warn, if rows of a table were changed without being logged.

        `keys`: the log does not say which they are.
        """
        state, now = self._states[number], read_state(self._open_connection(), table.oid)
        if now is None:  # the table is gone, and its last changes may be read yet
            return
        if keys and not self._options.before and now["keys"] != state["keys"]:
            raise self._key_error(table, state["keys"], now["keys"])
        for column in self._row_layout.columns:
            if now["columns"].get(column.name, -1) not in {-1, state["columns"][column.name]}:
                raise self._column_error(table, column, "was dropped and added again")
        if any(now["files"].get(name) != file for name, file in state["files"].items()):
            self.report(
                f"{self._server.where}: {table.name} was rewritten, or a partition of it was "
                "rewritten, truncated, detached or dropped. If that changed rows, the changes "
                "are not in the log: begin with a new slot and checkpoint."
            )
        self._states = [*self._states]
        self._states[number] = {**state, "files": now["files"]}

    # -- snapshot ---------------------------------------------------------------------------------

    def _new_snapshot(self) -> PostgresSnapshot:
        tables: Any = self._catalogued_tables
        return PostgresSnapshot(self._server, tables)

    def _parts_of_range(
        self,
        snapshot: PostgresSnapshot,
        number: int,
        after: Key | None,
        up_to: Key | None,
        parallelism: int,
    ) -> Iterator[tuple[int | None, int | None, Any]]:
        table: Any = self._catalogued_tables[number]
        for size, first, last in snapshot.parts_of(table, after, up_to, parallelism):
            yield size, None, (number, snapshot.token, snapshot.lsn, first, last)

    def _read_part(self, payload: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        number, token, lsn, after, up_to = payload
        table: Any = self._catalogued_tables[number]
        layout = self._row_layout
        table_columns = [name for name in columns if name in layout.columns.names]

        def rows(texts: pa.RecordBatch) -> pa.RecordBatch:
            read = {
                n: column_from_texts(texts.column(n), layout.schema.field(n)) for n in table_columns
            }
            return rows_of_snapshot(read, texts.num_rows, layout, table, columns, lsn=lsn)

        with (
            self._server.translating(f"cannot read {table.name}"),
            closing(self._server.connect()) as connection,
        ):
            begin_at(connection, token)
            for texts in copy_range(connection, table, table_columns, after, up_to):
                yield self._translating_value_errors(table, lambda t=texts: rows(t))

    # -- changes ----------------------------------------------------------------------------------

    def _table_reading(self, relation: pgoutput.Relation) -> TableReading | None:
        """Return the positions of columns in a table's changes; raise if they no longer fit."""
        number = next(
            (n for n, t in enumerate(self._catalogued_tables) if t.oid == relation.oid), None
        )
        if number is None:
            return None
        places = {column.name: place for place, column in enumerate(relation.columns)}
        missing = [(c.type_oid, c.modifier) for c in relation.columns]
        if any(key not in self._types for key in missing):
            self._types |= read_types(self._open_connection(), missing)
        keys = {column.name for column in relation.columns if column.in_key}
        self._checked_reading(
            number,
            places,
            lambda place, dtype: self._types[
                relation.columns[place].type_oid, relation.columns[place].modifier
            ].can_be(dtype),
            None if relation.whole else keys,
        )
        self._check_state(number, self._catalogued_tables[number], keys=relation.whole)
        return TableReading(number, places)

    def _problem_of_truncation(self, oids: tuple[int, ...]) -> SourceError | None:
        """Return the error for a truncation of tables, if it concerns the source."""
        table = next((table for table in self._catalogued_tables if table.oid in oids), None)
        return None if table is None else self._truncation_error(table)
