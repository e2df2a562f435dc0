"""Stream of changes from a replication slot, over one connection.

The server decodes its log once, as long as the connection lasts.  The slot is advanced behind
commits only, so after a crash the server sends the changes again.
"""

from __future__ import annotations

import select
import struct
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq, sql

from godwit.connect.postgres.catalog import PostgresServer, end_of_log, lsn_text, read_slot
from godwit.connect.postgres.pgoutput import (
    BEGIN,
    COMMIT,
    RELATION,
    TRUNCATE,
    Relation,
    read_begin,
    read_commit,
    read_relation,
    read_truncate,
    relation_of,
)
from godwit.connect.tables.log import LogPlace, LogStream, Transaction
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.connect.postgres.connection import Connection

_PING_S: Final = 0.05
_RETRY_S: Final = 0.1
_OBJECT_IN_USE: Final = "55006"
_DATA, _KEEPALIVE = b"wk"
_CHANGES: Final = frozenset(b"IUD")

_STREAMS: Final[dict[tuple[str, str], weakref.ref[ChangeStream]]] = {}
"""Server and slot → this process's stream that reads it."""


class ChangeStream(LogStream):
    """The stream of one slot.

    `read`: makes of a relation what a change needs to be decoded; returns ``None`` for a table that
    is not the source's, or raises `SourceError`. `truncated`: returns the error for a truncation of
    tables, or ``None``.
    """

    lost = (psycopg.OperationalError,)

    def __init__(
        self,
        server: PostgresServer,
        slot: str,
        publication: str,
        *,
        read: Callable[[Relation], Any],
        truncated: Callable[[tuple[int, ...]], SourceError | None],
        timeout_s: float,
    ) -> None:
        super().__init__(
            server.translating, server.error, f"the slot {slot!r}", timeout_s=timeout_s
        )
        self._server, self._slot, self._publication = server, slot, publication
        self._read, self._truncated = read, truncated
        self._connection: Connection | None = None
        self._relations: dict[int, Any] = {}
        self._confirmed = 0
        self._pinged_s = 0.0

    @property
    def connected(self) -> bool:
        """True while a connection streams."""
        return self._connection is not None

    # -- connection -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection, and forget the buffer."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._relations.clear()
        super().close()

    def _start_stream(self, control: Connection, begin: LogPlace) -> None:
        """Start streaming from `begin`; raise if the slot does not have it."""
        key = (self._server.name, self._slot)
        other = _STREAMS[key]() if key in _STREAMS else None
        if other is not None and other is not self:
            other.close()
        self.close()
        deadline_s = time.monotonic() + self._timeout_s
        while not self._has_started(begin):
            state = read_slot(control, self._server, self._slot)
            if state is None:
                raise self.missing_slot()
            if time.monotonic() > deadline_s:
                raise self._server.error(
                    f"cannot read the slot {self._slot!r}: the server's process "
                    f"{state.active_pid} reads it for another query or program",
                    "Give each query its own slot. If that program has ended without closing its "
                    f"connection: SELECT pg_terminate_backend({state.active_pid});",
                    slot=self._slot,
                )
            time.sleep(_RETRY_S)
        _STREAMS[key] = weakref.ref(self)
        self._buffer_begin, self.reached = begin, begin.lsn
        state = read_slot(control, self._server, self._slot)  # which nothing else advances now
        if state is not None and state.confirmed > begin.lsn:
            self.close()
            raise self._server.error(
                f"has read to {lsn_text(begin.lsn)}, but its slot {self._slot!r} begins at "
                f"{lsn_text(state.confirmed)}: another query or program has read the slot since",
                "Start with a new slot and a new checkpoint, so that the query begins with a "
                "snapshot; and give each query its own slot.",
                slot=self._slot,
            )
        self.confirm(LogPlace(self._confirmed, 0))

    def _has_started(self, begin: LogPlace) -> bool:
        """Ask the server to stream; return ``False`` if another connection has the slot."""
        connection = self._server.try_connect(replication=True)
        command = sql.SQL("START_REPLICATION SLOT {} LOGICAL {} ({})").format(
            sql.Identifier(self._slot),
            sql.SQL(lsn_text(begin.lsn)),
            sql.SQL("proto_version '1', publication_names {}").format(
                sql.Literal(sql.Identifier(self._publication).as_string())
            ),
        )
        result = connection.pgconn.exec_(command.as_bytes(connection))
        if result.status == pq.ExecStatus.COPY_BOTH:
            self._connection = connection
            return True
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        message = result.get_error_message()
        connection.close()
        if state.decode() == _OBJECT_IN_USE:
            return False
        if state == b"42704" and "slot" in message:
            raise self.missing_slot()
        with self._server.translating(f"cannot read the slot {self._slot!r}"):
            raise psycopg.errors.lookup(state.decode())(message)

    def missing_slot(self) -> SourceError:
        """Return the error for a slot that no longer exists."""
        return self._server.error(
            f"no longer has its slot {self._slot!r}: it was dropped, or this is another server, "
            "such as a promoted standby",
            "Start with a new checkpoint, so that the query begins with a snapshot. On PostgreSQL "
            "17 and newer, slots with failover = true survive a failover.",
            slot=self._slot,
        )

    def confirm(self, place: LogPlace) -> None:
        """Allow the server to remove its log up to `place`, and free the buffer up to it."""
        self._confirmed = max(self._confirmed, place.lsn)
        super().confirm(place)
        self._send_status()

    def _send_status(self, *, asks: bool = False) -> None:
        """Report the received and the committed position; `asks`: for a reply."""
        if self._connection is None:
            return
        arrived = max(self.reached, self._confirmed)
        message = struct.pack(
            "!cQQQqB", b"r", arrived, self._confirmed, self._confirmed, 0, int(asks)
        )
        try:
            self._connection.pgconn.put_copy_data(message)
            self._connection.pgconn.flush()
        except psycopg.Error:
            self._connection.close()
            self._connection = None

    # -- reading ----------------------------------------------------------------------------------

    def _end_of_log(self, control: Connection) -> int:
        return end_of_log(control)

    def _receive_message(self, *, wait: bool) -> bytes | None:
        assert self._connection is not None
        connection = self._connection.pgconn
        if wait:
            now_s = time.monotonic()
            if now_s - self._pinged_s > _PING_S:
                self._send_status(asks=True)
                self._pinged_s = now_s
            if self._connection is None:
                raise psycopg.OperationalError("the stream has ended")
            if select.select([connection.socket], [], [], _PING_S)[0]:
                connection.consume_input()
        length, data = connection.get_copy_data(1)
        if length < 0:
            raise psycopg.OperationalError(_last_error(connection))
        return bytes(data) if length > 0 else None

    def _buffer_message(self, data: bytes) -> tuple[int, int]:
        if data[0] == _KEEPALIVE:
            if self._open_transaction is None:
                self.reached = max(self.reached, int.from_bytes(data[1:9], "big"))
            if data[17]:  # the server asks for an answer, as before its shutdown
                self._send_status()
            return 0, 0
        message = data[25:]
        kind = message[0]
        if kind in _CHANGES:
            relation = self._relations.get(relation_of(message))
            if (
                relation is None
                or self._open_transaction is None
                or self._open_transaction.problem is not None
            ):
                return 0, 0
            self._open_transaction.relations.append(relation)
            self._open_transaction.messages.append(message)
            return 1, len(message)
        if kind == BEGIN:
            self._open_transaction = Transaction(*read_begin(message))
            self.transactions.append(self._open_transaction)
        elif kind == COMMIT and self._open_transaction is not None:
            self._open_transaction.end = self.reached = read_commit(message)
            if not self._open_transaction.number and self._open_transaction.problem is None:
                self.transactions.pop()
            self._open_transaction = None
        elif kind == RELATION:
            self._take_relation(read_relation(message))
        elif (
            kind == TRUNCATE
            and self._open_transaction is not None
            and self._open_transaction.problem is None
        ):
            self._open_transaction.problem = self._truncated(read_truncate(message))
        return 0, 0

    def _take_relation(self, relation: Relation) -> None:
        """Record how changes of a table are decoded from now on."""
        try:
            self._relations[relation.oid] = self._read(relation)
        except SourceError as error:
            if self._open_transaction is not None and self._open_transaction.problem is None:
                self._open_transaction.problem = error


def _last_error(connection: Any) -> str:
    """Return why a stream has ended."""
    result = connection.get_result()
    return (result.get_error_message() if result is not None else "") or "the stream has ended"
