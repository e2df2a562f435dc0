"""The binary log of a MariaDB server: a connection that streams everything after given GTIDs.

Its place is one number: the sum of the sequence numbers of all domains. It grows with every
transaction, in the order of the log, and the place of a state that the server names is the same
number. So states of the log are compared by it; it is the GTIDs that a connection begins with.
"""

from __future__ import annotations

import random
import select
import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pymysql
from pymysql.constants.COMMAND import COM_BINLOG_DUMP

from godwit.connect.mariadb import binlog
from godwit.connect.mariadb.server import is_lost, query
from godwit.connect.tables.log import LogPlace, LogStream, Transaction
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.connect.mariadb.server import Connection, MariaServer
    from godwit.connect.mariadb.types import Charset

_NON_BLOCKING: Final = 1
_REFUSED: Final = 1236


def state_of(gtids: str) -> dict[int, tuple[int, int]]:
    """Return GTIDs as domain → server and sequence number of its last transaction.

    Examples
    --------
    >>> state_of("0-7-16,1-7-3")
    {0: (7, 16), 1: (7, 3)}
    """
    named = [tuple(map(int, gtid.split("-"))) for gtid in gtids.split(",") if gtid]
    return {domain: (server, number) for domain, server, number in named}


def gtids_of(state: dict[int, tuple[int, int]]) -> str:
    """Return GTIDs as MariaDB writes them."""
    return ",".join(f"{domain}-{server}-{n}" for domain, (server, n) in sorted(state.items()))


def place_of(gtids: str) -> int:
    """Return the place of GTIDs in the log.

    Examples
    --------
    >>> place_of("0-7-16,1-7-3")
    19
    """
    return sum(number for _, number in state_of(gtids).values())


def end_of_log(connection: Connection) -> str:
    """Return the GTIDs of everything in the log."""
    [(gtids,)] = query(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    return str(gtids)


class LogPoint(NamedTuple):
    """A place in the log: its GTIDs, and its file and offset, if known."""

    gtids: str
    file: str = ""
    position: int = 0


class BinlogStream(LogStream):
    """The stream of a server's binary log.

    `tables`: databases and names; `read`: makes of a table's description what its changes need to
    be decoded, or raises `SourceError`; `problem`: returns the error for a statement, or ``None``.
    """

    lost = (pymysql.err.Error, OSError)

    def __init__(
        self,
        server: MariaServer,
        *,
        tables: frozenset[tuple[str, str]],
        charset: Callable[[int], Charset],
        read: Callable[[binlog.TableMap], Any],
        problem: Callable[[str, str], SourceError | None],
        start_again: str,
        timeout_s: float,
    ) -> None:
        super().__init__(server.translating, server.error, "the binary log", timeout_s=timeout_s)
        self._server, self._tables = server, tables
        self._charset, self._read, self._problem = charset, read, problem
        self._start_again = start_again
        self._connection: Connection | None = None
        self.points: dict[
            int, LogPoint
        ] = {}  # of positions, and of ends of transactions with changes
        self._reached_point = LogPoint("")  # what `reached` is
        self._forget_log()

    def _forget_log(self) -> None:
        """Reset the state that depends on a connection."""
        self._maps: dict[int, Any] = {}  # number of a table → what `read` made of it, or its error
        self._has_checksum, self._file, self._flags = False, "", 0
        self._state: dict[int, tuple[int, int]] = {}
        self._gtid: tuple[int, int, int] | None = None

    @property
    def connected(self) -> bool:
        """True while a connection streams."""
        return self._connection is not None

    def close(self) -> None:
        """Close the connection, and forget the buffer."""
        if self._connection is not None:
            self._connection._force_close()  # noqa: SLF001  the server does not listen
            self._connection = None
        self._forget_log()
        super().close()

    def know(self, gtids: str, file: str = "", position: int = 0) -> int:
        """Record the place of GTIDs, and return it."""
        lsn = place_of(gtids)
        if lsn not in self.points or file:
            self.points[lsn] = LogPoint(gtids, file, position)
        return lsn

    def point(self, lsn: int) -> LogPoint:
        """Return the point of a place."""
        return self._reached_point if lsn == self.reached and self.connected else self.points[lsn]

    def confirm(self, place: LogPlace) -> None:
        """Free the buffer up to `place`, which is committed."""
        super().confirm(place)
        self.points = {lsn: point for lsn, point in self.points.items() if lsn >= place.lsn}

    def check(self, gtids: str, end: str) -> None:
        """Raise unless the server can stream from given GTIDs; `end`: those of its log.

        The server itself takes a domain that it does not have for one of other servers.
        """
        last = state_of(end)
        if any(number > last.get(d, (0, 0))[1] for d, (_, number) in state_of(gtids).items()):
            raise self._other_log(gtids)
        with self._server.translating("cannot read the binary log"):
            connection = self._open_dump(gtids, _NON_BLOCKING)
            try:
                while True:
                    packet = connection._read_packet()  # noqa: SLF001
                    data = packet.get_all_data()
                    if packet.is_eof_packet() or data[5] == binlog.GTID:
                        break
            except pymysql.err.Error as error:
                self._raise_refusal(error, gtids)
                raise
            finally:
                connection._force_close()  # noqa: SLF001

    def _open_dump(self, gtids: str, flags: int) -> Connection:
        """Return a connection on which the server streams everything after given GTIDs."""
        connection = self._server.try_connect(read_timeout_s=max(1.0, self._timeout_s))
        query(
            connection,
            "SET @mariadb_slave_capability = 4, "
            "@master_binlog_checksum = @@GLOBAL.binlog_checksum, @slave_connect_state = %s, "
            "@slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0",
            gtids,
        )
        [(checksum,)] = query(connection, "SELECT @master_binlog_checksum")
        self._has_checksum = checksum != "NONE"
        number = random.SystemRandom().randrange(1 << 31, 1 << 32)  # the server ends equal ones
        connection._execute_command(  # noqa: SLF001
            COM_BINLOG_DUMP, struct.pack("<IHI", 4, flags, number)
        )
        return connection

    def _start_stream(self, _: Connection, begin: LogPlace) -> None:
        point = self.points[begin.lsn]
        self.close()
        self._connection = self._open_dump(point.gtids, 0)
        self._state, self._reached_point = state_of(point.gtids), point
        self._buffer_begin, self.reached = begin, begin.lsn

    def _end_of_log(self, control: Connection) -> int:
        return self.know(end_of_log(control))

    def _receive_message(self, *, wait: bool) -> bytes | None:
        connection = self._connection
        assert connection is not None
        # Data may be in the buffer of the connection already, so this may miss some for now.
        if not wait and not select.select([connection._sock], [], [], 0)[0]:  # noqa: SLF001
            return None
        try:
            packet = connection._read_packet()  # noqa: SLF001
        except pymysql.err.Error as error:
            self._raise_refusal(error, gtids_of(self._state))
            raise
        if packet.is_eof_packet():
            raise pymysql.err.OperationalError(2013, "the server has ended the stream")
        return bytes(packet.get_all_data())

    def _raise_refusal(self, error: pymysql.err.Error, gtids: str) -> None:
        """Raise the error of a server that does not send its log; return if a retry may help."""
        text = str(error.args[-1])
        if error.args[0] == _REFUSED and "purged" in text:
            self.close()
            raise self._error(
                f"has read to {gtids or 'the beginning of the log'}, but the server has removed "
                "binary logs after that",
                f"{self._start_again} Increase binlog_expire_logs_seconds.",
            ) from None
        if error.args[0] == _REFUSED and "requested to start from GTID" in text:
            self.close()
            raise self._other_log(gtids) from None
        if not is_lost(error):
            self.close()
            with self._server.translating("cannot read the binary log"):
                raise error from None

    def _other_log(self, gtids: str) -> SourceError:
        """Return the error for a log that does not match a position."""
        return self._error(
            f"has read to {gtids}, which the log of this server does not have: it is a different "
            "server, a replica that lags behind, or was restored from a backup, or RESET MASTER "
            "was executed",
            self._start_again,
        )

    # -- events -----------------------------------------------------------------------------------

    def _buffer_message(self, message: bytes) -> tuple[int, int]:
        try:
            event = binlog.read_event(message, has_checksum=self._has_checksum)
        except binlog.BadChecksumError as error:
            raise self._error(f"cannot continue: {error}", self._start_again) from None
        kind = event.kind
        if kind in binlog.ROWS:
            return self._take_rows(event)
        if kind == binlog.TABLE_MAP:
            self._take_table(event)
        elif kind == binlog.GTID:
            self._take_gtid(event)
        elif kind in {binlog.QUERY, binlog.QUERY_COMPRESSED, binlog.EXECUTE_LOAD}:
            self._take_statement(event)
        elif kind in {binlog.XID, binlog.XA_PREPARE}:
            self._end_transaction(event)
        elif kind == binlog.FORMAT:
            self._has_checksum = binlog.checksums_after(event)
            self._maps.clear()
        elif kind == binlog.ROTATE:
            self._file = event.body[8:].decode()
        elif kind not in binlog.WITHOUT_CHANGES:
            what = "lost changes (an incident)" if kind == binlog.INCIDENT else "has an event "
            what += (
                "" if kind == binlog.INCIDENT else f"{kind}, which this version does not support"
            )
            self._note_problem(
                self._error(f"cannot continue: the binary log {what}", self._start_again)
            )
        return 0, 0

    def _take_gtid(self, event: binlog.BinlogEvent) -> None:
        """Begin a transaction."""
        gtid, self._flags = binlog.read_gtid(event)
        domain, server, number = gtid
        last = self._state.get(domain, (server, 0))[1]
        if number <= last:
            raise self._error(
                f"cannot continue: the binary log has {domain}-{server}-{number} after the "
                f"number {last} of its domain",
                "Allow only one server to write to a domain (gtid_strict_mode = ON). "
                f"{self._start_again}",
            )
        self._gtid = gtid
        reached_after = self.reached + number - last
        text = f"{domain}-{server}-{number}"
        self._open_transaction = Transaction(reached_after - 1, event.time_s * 1_000_000, text)
        self.transactions.append(self._open_transaction)

    def _end_transaction(self, event: binlog.BinlogEvent) -> None:
        """End a transaction, whose changes are committed."""
        transaction, gtid = self._open_transaction, self._gtid
        assert transaction is not None
        assert gtid is not None
        self._state[gtid[0]] = gtid[1:]
        transaction.end = self.reached = transaction.lsn + 1
        self._reached_point = LogPoint(gtids_of(self._state), self._file, event.end)
        if transaction.number or transaction.problem is not None:
            self.points[self.reached] = self._reached_point
        else:
            self.transactions.pop()
        self._open_transaction = self._gtid = None

    def _note_problem(self, problem: SourceError | None) -> None:
        """Record a problem in the log, to be raised after the changes before it."""
        if problem is None:
            return
        if self._open_transaction is None:
            raise problem
        if self._open_transaction.problem is None:
            self._open_transaction.problem = problem

    def _take_statement(self, event: binlog.BinlogEvent) -> None:
        """Process a statement: the end of a transaction, or a change of tables."""
        statement, schema = binlog.read_statement(event)
        word = statement.split(None, 1)[0].upper() if statement.strip() else ""
        if self._flags & binlog.STANDALONE or word == "COMMIT":
            self._note_problem(self._problem(statement, schema))
            self._end_transaction(event)
        elif word == "ROLLBACK":
            if self._open_transaction is not None and self._open_transaction.number:
                what = "has changes that were rolled back, and others that could not be"
                self._note_problem(
                    self._error(f"cannot continue: the binary log {what}", self._start_again)
                )
            if len(statement.split()) == 1:
                self._end_transaction(event)
        elif word not in {"BEGIN", "SAVEPOINT", "XA", "START"}:
            self._note_problem(self._problem(statement, schema))

    def _take_table(self, event: binlog.BinlogEvent) -> None:
        """Record how changes of a table are decoded from now on."""
        number = binlog.table_id(event.body)
        if binlog.name_of_table(event.body) not in self._tables:
            self._maps.pop(number, None)
            return
        try:
            self._maps[number] = self._read(binlog.read_table_map(event.body, self._charset))
        except binlog.UnknownMariaTypeError as error:
            name = ".".join(binlog.name_of_table(event.body))
            self._maps[number] = self._error(
                f"cannot read changes of {name}, which has a column of type {error} in the "
                "binary log, such as times from before MariaDB 10.1",
                f"ALTER TABLE {name} FORCE; {self._start_again}",
            )
        except SourceError as error:
            self._maps[number] = error

    def _take_rows(self, event: binlog.BinlogEvent) -> tuple[int, int]:
        """Add changes of rows; return their number and size."""
        reading = self._maps.get(binlog.table_id(event.body))
        if (
            reading is None
            or self._open_transaction is None
            or self._open_transaction.problem is not None
        ):
            return 0, 0
        if isinstance(reading, SourceError):
            self._note_problem(reading)
            return 0, 0
        if self._flags & binlog.PREPARED_XA:
            what = "was prepared by XA, and may still be rolled back"
            self._note_problem(
                self._error(
                    f"cannot read the transaction {self._open_transaction.xid}: it {what}",
                    self._start_again,
                )
            )
            return 0, 0
        try:
            changes = binlog.read_changes(event, reading.sizes)
        except binlog.PartialRowsError:
            self._note_problem(
                self._error(
                    "cannot continue: a client changed rows with a binlog_row_image other than "
                    "FULL",
                    self._start_again,
                )
            )
            return 0, 0
        self._open_transaction.relations.extend([reading] * len(changes))
        self._open_transaction.messages.extend(changes)
        return len(changes), sum(map(len, changes))
