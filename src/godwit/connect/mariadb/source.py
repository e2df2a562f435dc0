"""Changes of MariaDB tables: `gw.sources.mariadb`.

A position has the GTIDs of the log that were read, and the number of their place in it
(`godwit.connect.mariadb.stream`).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from godwit.connect.mariadb import binlog
from godwit.connect.mariadb.server import (
    MariaServer,
    MariaTable,
    check_filters,
    check_server,
    query,
    read_charsets,
    read_table,
)
from godwit.connect.mariadb.snapshot import MariaSnapshot, keys_up_to
from godwit.connect.mariadb.stream import BinlogStream, end_of_log, state_of
from godwit.connect.mariadb.types import Charset, LogColumn, column_from_values
from godwit.connect.tables.rows import TableReading, rows_of_snapshot
from godwit.connect.tables.source import TableSource, TableSourceOptions
from godwit.sources.source import Lag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from godwit.connect.mariadb.server import Connection
    from godwit.connect.tables.log import LogPlace
    from godwit.connect.tables.rows import ChangedTable, Key, Row
    from godwit.model.errors import SourceError
    from godwit.sources.source import Position, Split


@dataclass(frozen=True, slots=True)
class LogReading(TableReading):
    """Positions and types of a table's columns in its changes."""

    columns: tuple[LogColumn, ...]
    kinds: tuple[str, ...]  # of each column: that of its values
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MariaDBDecoding:
    """Decoder of changes in the binary log."""

    server: MariaServer

    def change(self, message: bytes, reading: LogReading) -> tuple[Row | None, bool, Row | None]:
        """Return the former row, which is complete, and the new row."""
        former, new = binlog.read_change(message, reading.sizes)
        return former, True, new

    def num_rows(self, message: bytes) -> int:
        """Return the maximum number of signed rows that a change yields."""
        return 2 if message[0] == binlog.UPDATE else 1

    def column(self, values: Row, schema_field: pa.Field, reading: LogReading) -> pa.Array:
        """Return stored values as a column."""
        place = reading.places[schema_field.name]
        kind = reading.kinds[place]
        return column_from_values(reading.columns[place].decode(values, kind), schema_field, kind)

    def key(self, values: Row, table: MariaTable, reading: LogReading) -> Key:
        """Return the values of a row's key as texts."""
        places = [reading.places[name] for name in table.keys]
        return [reading.columns[p].key_text(values[p], reading.kinds[p]) for p in places]

    def keys_up_to(self, table: MariaTable, keys: Sequence[Key], bound: Key) -> set[int]:
        """Return the numbers of the keys that are not after `bound`, in the server's order."""
        with (
            self.server.translating("cannot compare keys"),
            closing(self.server.try_connect()) as connection,
        ):
            return keys_up_to(connection, table, keys, bound)


class MariaDBSource(TableSource):
    """Changes of tables, from a snapshot and then from the binary log."""

    _again = "a new checkpoint"

    def __init__(self, server: MariaServer, options: TableSourceOptions) -> None:
        super().__init__(server, options)
        self._decoding = MariaDBDecoding(server)

    def _init_unpickled(self) -> None:
        super()._init_unpickled()
        self._stream: BinlogStream | None = None
        self._identity: tuple[str, str] | None = None
        self._charsets: dict[int, Charset] = {}

    def _source_call_text(self, tables: str) -> str:
        return f"mariadb({self._server.name!r}, {tables})"

    @property
    def identity(self) -> str:
        """Tables; the position has the identity of the server."""
        return f"MariaDB tables {' '.join(self._options.tables)}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The tables, after server and database."""
        parameters = self._server.parameters
        server = f"mysql://{parameters.get('host') or 'localhost'}:{parameters.get('port') or 3306}"
        database = parameters.get("database") or parameters.get("db") or ""
        return tuple(
            f"{server}/{name if '.' in name else f'{database}.{name}'}"
            for name in self._options.tables
        )

    def _read_table(self, connection: Connection, name: str) -> MariaTable:
        return read_table(connection, self._server, name, before=self._options.before)

    # -- life cycle -------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Check server, tables and log; raise if the position belongs to others."""
        self.close()
        self._control = connection = self._server.connect()
        self._identity = check_server(self._server, connection)
        if position is not None:
            self._check_server(position)
            if position["server"] == self._identity[0]:
                self._check_log(connection, position)
        tables: Any = self._open_tables(connection, position)
        check_filters(self._server, connection, tables)
        with self._server.translating("cannot look up character sets"):
            self._charsets = read_charsets(connection)
            end = end_of_log(connection)
        self._stream = BinlogStream(
            self._server,
            tables=frozenset(table.parts for table in tables),
            charset=lambda number: self._charsets.get(number, Charset("unknown")),
            read=self._table_reading,
            problem=self._problem_of,
            start_again=self._start_again,
            timeout_s=self._options.timeout_s,
        )
        self._stream.check(end if position is None else position["gtids"], end)

    def _check_server(self, position: Position) -> None:
        """Raise if a position is from a server that this one is not a replica of.

        A replica has another number, and the same GTIDs, which the server checks.
        """
        assert self._identity is not None
        identity, number = self._identity
        if position["server"] == identity:
            return
        if position["server_id"] == number:
            raise self._server.error(
                f"has read another server with the same server_id = {number}, so their GTIDs "
                "cannot be distinguished",
                f"Connect to the former server. {self._start_again}",
            )
        self.report(
            f"{self._server.where}: continues on another server, server_id = {number}, by GTIDs."
        )

    def _check_log(self, connection: Connection, position: Position) -> None:
        """Raise if the log was reset since then, and may have the same GTIDs."""
        with self._server.translating("cannot look up its binary logs"):
            files = [name for name, *_ in query(connection, "SHOW BINARY LOGS")]
            file, is_known = position["file"], True
            if file in files:
                [(gtids,)] = query(
                    connection, "SELECT BINLOG_GTID_POS(%s, %s)", file, position["position"]
                )
                read = state_of(position["gtids"])
                logged = state_of(gtids or "")
                is_known = all(read.get(domain) == last for domain, last in logged.items())
                is_known = is_known and (gtids is not None) and bool(logged) == bool(read)
            elif file and files:
                is_known = file < files[-1] or len(file) < len(files[-1])
        if not is_known:
            raise self._server.error(
                f"has read {file} to {position['position']}, which is now a different binary "
                "log: RESET MASTER was executed, or the server was restored from a backup",
                self._start_again,
            )

    def _is_closed(self, connection: Connection) -> bool:
        return not connection.open

    def _server_identity(self) -> dict[str, Any]:
        assert self._identity is not None, "it is open"
        return dict(zip(("server", "server_id"), self._identity, strict=True))

    def _log_stream(self) -> BinlogStream:
        """Return the stream of the log."""
        assert self._stream is not None, "it is open"
        return self._stream

    def _note_next_position(self, position: Position) -> None:
        """Record where the log continues after a position."""
        self._log_stream().know(position["gtids"], position["file"], position["position"])

    def _position_at(self, position: Position, place: LogPlace) -> dict[str, Any]:
        return {
            **super()._position_at(position, place),
            **self._server_identity(),
            **self._log_stream().point(place.lsn)._asdict(),
        }

    def _first_log_place(self, connection: Connection) -> int:
        return self._end_of_log(connection)

    def _end_of_log(self, connection: Connection) -> int:
        return self._log_stream().know(end_of_log(connection))

    def describe(self, position: Position) -> dict[str, Any]:
        described = super().describe(position)
        return {"gtids": described.pop("lsn"), **described}

    def _place_text(self, position: Position) -> str:
        return str(position["gtids"]) or "the beginning of the log"

    def _complete_changes(self, _: ChangedTable) -> str:
        return "SET GLOBAL binlog_row_image = 'FULL';"

    def lag(self, position: Position) -> Lag:
        """Return the bytes of the binary log after a position, if its file is known."""
        with self._server.translating("cannot determine its lag"):
            connection = self._open_connection()
            end = self._end_of_log(connection)
            files = {name: int(size) for name, size, *_ in query(connection, "SHOW BINARY LOGS")}
        size_bytes, file = None, position["file"]
        if end <= position["lsn"] and position["snapshot"] is None:
            size_bytes = 0
        elif file in files:
            later = [size for name, size in files.items() if name >= file]
            size_bytes = max(0, sum(later) - position["position"])
        return Lag(size_bytes=size_bytes, oldest_us=self._oldest_us(position))

    def _check_tables(self) -> None:
        self._read_tables(self._open_connection())

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after the next part of the snapshot, or after commits."""
        self._note_next_position(position)
        return super().latest(position, limit=limit, until=until)

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return splits of rows of the snapshot, and of changes that are in the buffer."""
        self._note_next_position(begin)
        return super().splits(begin, end, parallelism)

    # -- snapshot ---------------------------------------------------------------------------------

    def _new_snapshot(self) -> MariaSnapshot:
        tables: Any = self._catalogued_tables
        snapshot = MariaSnapshot(self._server, tables)
        self._log_stream().know(snapshot.gtids, snapshot.file, snapshot.position)
        return snapshot

    def _parts_of_range(
        self,
        snapshot: MariaSnapshot,
        number: int,
        after: Key | None,
        up_to: Key | None,
        parallelism: int,  # noqa: ARG002  the rows are here
    ) -> Iterator[tuple[int | None, int | None, Any]]:
        table: Any = self._catalogued_tables[number]
        for rows in snapshot.rows(table, self._row_layout.columns.names, after, up_to):
            yield rows.num_rows, rows.nbytes, (number, snapshot.lsn, rows)

    def _read_part(self, payload: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        number, lsn, rows = payload
        table: Any = self._catalogued_tables[number]
        layout = self._row_layout

        def read() -> pa.RecordBatch:
            arrays = {}
            for name in columns:
                if name in layout.columns.names:
                    kind = table.column(name).values.kind
                    values = rows.column(name).to_pylist()
                    arrays[name] = column_from_values(values, layout.schema.field(name), kind)
            return rows_of_snapshot(arrays, rows.num_rows, layout, table, columns, lsn=lsn)

        yield self._translating_value_errors(table, read)

    # -- changes ----------------------------------------------------------------------------------

    def _table_reading(self, described: binlog.TableMap) -> LogReading:
        """Return how changes of a table are read; raise if they no longer fit."""
        tables: Any = self._catalogued_tables
        parts = (described.schema, described.name)
        number = next(n for n, table in enumerate(tables) if table.parts == parts)
        table = tables[number]
        columns = described.columns
        if not all(column.name for column in columns):
            raise self._server.error(
                f"cannot read changes of {table.name} that were logged without binlog_row_metadata "
                "= FULL",
                f"SET GLOBAL binlog_row_metadata = 'FULL'; {self._start_again}",
            )
        types = []
        for column in columns:
            catalogued = table.column(column.name)
            types.append(column.values("" if catalogued is None else catalogued.values.kind))
        places = {column.name: place for place, column in enumerate(columns)}
        keys = {columns[place].name for place in described.keys}
        self._checked_reading(
            number,
            places,
            lambda place, dtype: types[place].can_be(dtype),
            None if self._options.before else keys,
        )
        kinds = tuple(values.kind for values in types)
        return LogReading(number, places, columns, kinds, tuple(c.size for c in columns))

    def _problem_of(self, statement: str, schema: str) -> SourceError | None:
        """Return the error for a statement in the log, if it concerns the source."""
        tables: Any = self._catalogued_tables
        effect = binlog.effect_of(statement, schema, [table.parts for table in tables])
        if effect is None:
            return None
        table = tables[effect.table]
        shortened = " ".join(statement.split())[:100]
        if effect.what == "truncated":
            return self._truncation_error(table)
        if effect.what == "altered":
            lost = [column for column in self._row_layout.columns if column.name in effect.columns]
            if lost:
                return self._column_error(
                    table, lost[0], f"was dropped or renamed by {shortened!r}"
                )
            self.report(
                f"{self._server.where}: {table.name} was altered by {shortened!r}. The log does "
                "not have the values that this changed."
            )
            return None
        reason = "that was dropped, renamed, or created again by"
        if effect.what == "statement":
            reason = "whose rows a client changed without binlog_format = ROW, by"
        error: SourceError = self._server.error(
            f"has read a table {table.name} {reason} {shortened!r}",
            self._start_again,
            table=table.name,
        )
        return error
