"""Changes from a replication slot: one connection that streams, and a buffer of transactions.

The server decodes its log once, as long as the connection lasts, and sends transactions in order of
their commits.  They stay in the buffer until the epoch that read them is committed, so an epoch can
be planned again.  Only then is the slot advanced, so after a crash the server sends them again.

A place in the stream is a position after a commit, and a number of changes within the next
transaction that has any.
"""

from __future__ import annotations

import select
import struct
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import pq, sql

from godwit.connect.postgres.catalog import Server, end_of_log, lsn_text, read_slot
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
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.connect.postgres.connection import Connection

MAX_BYTES: Final = 64 << 20
"""Size of the changes from which an epoch takes no more, and the buffer is not filled further."""

EVERYTHING: Final = 1 << 62
"""Number of changes without a limit of their size."""

_WAIT_S: Final = 1.0  # longest wait for the server to send what its log has
_PING_S: Final = 0.05
_RETRY_S: Final = 0.1
_OBJECT_IN_USE: Final = "55006"
_DATA, _KEEPALIVE = b"wk"
_CHANGES: Final = frozenset(b"IUD")

_STREAMS: Final[dict[tuple[str, str], weakref.ref[ChangeStream]]] = {}
"""Server and slot → the stream of this process that reads it."""


class Place(NamedTuple):
    """A place in the stream."""

    lsn: int  # after a commit
    within: int  # changes of the next transaction


@dataclass(slots=True)
class Transaction:
    """Changes of a transaction to the tables of the source."""

    lsn: int  # of its commit
    time_us: int
    xid: int
    end: int = 0  # position after its commit; 0: that has not arrived
    relations: list[Any] = field(default_factory=list)  # of each change: what `read` made of it
    messages: list[bytes] = field(default_factory=list)
    freed: int = 0  # number of first changes that are committed, and not in the lists any more
    problem: SourceError | None = None  # of what follows the changes

    @property
    def number(self) -> int:
        """Number of changes that have arrived."""
        return self.freed + len(self.messages)

    def size(self, start: int, stop: int) -> int:
        """Return the bytes of some of the changes."""
        return sum(map(len, self.messages[start - self.freed : stop - self.freed]))

    def free(self, number: int) -> None:
        """Forget the first `number` changes."""
        count = max(0, number - self.freed)
        del self.messages[:count], self.relations[:count]
        self.freed += count


class ChangeStream:
    """The stream of one slot.

    `read`: makes of a relation what a change needs to be decoded; returns ``None`` for a table that
    is not the source's, or raises `SourceError`. `truncated`: returns the error for a truncation of
    tables, or ``None``.
    """

    def __init__(
        self,
        server: Server,
        slot: str,
        publication: str,
        *,
        read: Callable[[Relation], Any],
        truncated: Callable[[tuple[int, ...]], SourceError | None],
        timeout_s: float,
    ) -> None:
        self._server, self._slot, self._publication = server, slot, publication
        self._read, self._truncated, self._timeout_s = read, truncated, timeout_s
        self._connection: Connection | None = None
        self._relations: dict[int, Any] = {}
        self.transactions: list[Transaction] = []
        self._open: Transaction | None = None  # whose commit has not arrived
        self._begin = Place(0, 0)  # the buffer has what follows
        self._confirmed = 0
        self.reached = 0  # everything that was committed before is in the buffer
        self._failing_since_s: float | None = None

    # -- connection -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection, and forget the buffer."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._relations.clear()
        self.transactions.clear()
        self._open, self.reached = None, 0

    def _start(self, control: Connection, begin: Place) -> None:
        """Begin to stream what follows `begin`; raise if the slot does not have it."""
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
                    f"cannot read the slot {self._slot!r}, which process {state.active_pid} of the "
                    "server is reading for another query or program",
                    "Give each query a slot of its own. If that program has ended without closing "
                    f"its connection: SELECT pg_terminate_backend({state.active_pid});",
                    slot=self._slot,
                )
            time.sleep(_RETRY_S)
        _STREAMS[key] = weakref.ref(self)
        self._begin, self.reached = begin, begin.lsn
        state = read_slot(control, self._server, self._slot)  # which nothing else advances now
        if state is not None and state.confirmed > begin.lsn:
            self.close()
            raise self._server.error(
                f"has read to {lsn_text(begin.lsn)}, and its slot {self._slot!r} begins at "
                f"{lsn_text(state.confirmed)}: another query or program has read the slot since",
                "Start with a new slot and a new checkpoint, so that the query begins with a "
                "snapshot; and give each query a slot of its own.",
                slot=self._slot,
            )
        self.confirm(Place(self._confirmed, 0))

    def _has_started(self, begin: Place) -> bool:
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
        """Return the error for a slot that is gone."""
        return self._server.error(
            f"has no slot {self._slot!r} any more: it was dropped, or the server is another one, "
            "such as a standby that took over",
            "Start with a new checkpoint, so that the query begins with a snapshot. On PostgreSQL "
            "17 and newer, slots with failover = true survive a failover.",
            slot=self._slot,
        )

    def confirm(self, place: Place) -> None:
        """Let the server remove its log up to `place`, and free the buffer up to it."""
        self._confirmed = max(self._confirmed, place.lsn)
        while self.transactions and 0 < self.transactions[0].end <= place.lsn:
            self.transactions.pop(0)
        if self._begin < place:
            self._begin = place
            if place.within and self.transactions:
                self.transactions[0].free(place.within)
        self._send_status()

    def _send_status(self, *, asks: bool = False) -> None:
        """Report the arrived and the committed position; `asks`: for an answer."""
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

    def pump(
        self,
        connect: Callable[[], Connection],
        begin: Place,
        *,
        changes: int,
        until: Place | None,
        whole: bool,
    ) -> bool:
        """Read on from `begin`, without waiting for what the log does not have yet.

        Return whether the stream is up to date with the log. `connect`: returns a connection for
        questions. `changes`: number that is enough.
        `until`: place that is far enough. `whole`: only transactions that have ended count.
        Without a connection to the server, nothing is read for a while, before the error is raised.
        """
        try:
            control = connect()
            if self._connection is None or begin < self._begin or begin.lsn > self.reached:
                self._start(control, begin)
            up_to_date = self._pump(control, begin, changes, until, whole=whole)
        except psycopg.OperationalError as error:
            self.close()
            now_s = time.monotonic()
            if self._failing_since_s is None:
                self._failing_since_s = now_s
            if now_s - self._failing_since_s > self._timeout_s:
                with self._server.translating(f"cannot read the slot {self._slot!r}"):
                    raise error from None
            return False
        self._failing_since_s = None
        return up_to_date

    def fill(
        self, connect: Callable[[], Connection], begin: Place, end: Place, *, whole: bool
    ) -> None:
        """Read all that is between two places; raise if that cannot be read."""
        deadline_s, before = time.monotonic() + self._timeout_s, (0, 0)
        while not (begin >= self._begin and self._has_reached(end)):
            self.pump(connect, begin, changes=EVERYTHING, until=end, whole=whole)
            for transaction in self.transactions:
                if transaction.problem is not None and transaction.lsn < end.lsn:
                    raise transaction.problem
            now_s, arrived = time.monotonic(), (self.reached, len(self.transactions))
            if arrived != before:
                deadline_s, before = now_s + self._timeout_s, arrived
            elif now_s > deadline_s:
                raise self._server.error(
                    f"cannot read the slot {self._slot!r} up to {lsn_text(end.lsn)}",
                    "Start the query again: it continues from its checkpoint.",
                )

    def _pump(
        self, control: Connection, begin: Place, changes: int, until: Place | None, *, whole: bool
    ) -> bool:
        """Read until there is enough, or the end of the log is reached."""
        count = sum(stop - start for _, start, stop in self.between(begin, None))
        if begin.within:  # which may have to arrive again
            first = next(self.between(begin, None), None)
            count -= begin.within - min(begin.within, first[0].number if first else 0)
        size = sum(
            transaction.size(start, stop) for transaction, start, stop in self.between(begin, None)
        )
        target = None if until is None or until.within else until.lsn
        deadline_s = time.monotonic() + _WAIT_S
        pinged_s = 0.0
        assert self._connection is not None
        connection = self._connection.pgconn
        while True:
            enough = count >= changes or (size >= MAX_BYTES and changes < EVERYTHING)
            if enough and not (whole and self._open is not None):
                return False
            if until is not None and self._has_reached(until):
                return False
            if self.transactions and self.transactions[-1].problem is not None:
                return False
            length, data = connection.get_copy_data(1)
            if length > 0:
                taken = self._take(bytes(data))
                count, size = count + (taken > 0), size + taken
                continue
            if length < 0:
                raise psycopg.OperationalError(_last_error(connection))
            if count > 0 and self._open is None and until is None:
                return False
            if target is None:
                target = end_of_log(control)
            now_s = time.monotonic()
            if self._open is None and self.reached >= target:
                return True
            if now_s > deadline_s:
                return False
            if now_s - pinged_s > _PING_S:
                self._send_status(asks=True)
                pinged_s = now_s
            if select.select([connection.socket], [], [], _PING_S)[0]:
                connection.consume_input()
                deadline_s = time.monotonic() + _WAIT_S

    def _has_reached(self, place: Place) -> bool:
        """Return whether all that comes before a place is in the buffer."""
        if not place.within or self.reached < place.lsn:
            return self.reached >= place.lsn
        following = next((t for t in self.transactions if not 0 < t.end <= place.lsn), None)
        return following is not None and following.number >= place.within

    def _take(self, data: bytes) -> int:
        """Add a message to the buffer; return the size of a change, 0 of other messages."""
        if data[0] == _KEEPALIVE:
            if self._open is None:
                self.reached = max(self.reached, int.from_bytes(data[1:9], "big"))
            if data[17]:  # the server asks for an answer, as before its shutdown
                self._send_status()
            return 0
        message = data[25:]
        kind = message[0]
        if kind in _CHANGES:
            relation = self._relations.get(relation_of(message))
            if relation is None or self._open is None or self._open.problem is not None:
                return 0
            self._open.relations.append(relation)
            self._open.messages.append(message)
            return len(message)
        if kind == BEGIN:
            self._open = Transaction(*read_begin(message))
            self.transactions.append(self._open)
        elif kind == COMMIT and self._open is not None:
            self._open.end = self.reached = read_commit(message)
            if not self._open.number and self._open.problem is None:
                self.transactions.pop()
            self._open = None
        elif kind == RELATION:
            self._take_relation(read_relation(message))
        elif kind == TRUNCATE and self._open is not None and self._open.problem is None:
            self._open.problem = self._truncated(read_truncate(message))
        return 0

    def _take_relation(self, relation: Relation) -> None:
        """Note how changes of a table are decoded from now on."""
        try:
            self._relations[relation.oid] = self._read(relation)
        except SourceError as error:
            if self._open is not None and self._open.problem is None:
                self._open.problem = error

    # -- the buffer -------------------------------------------------------------------------------

    def between(self, begin: Place, end: Place | None) -> Iterator[tuple[Transaction, int, int]]:
        """Yield transactions between two places, with the numbers of the changes to read."""
        skipped = begin.within
        for transaction in self.transactions:
            if 0 < transaction.end <= begin.lsn:
                continue
            number = max(skipped, transaction.number)  # some may not have arrived yet
            if end is not None and not 0 < transaction.end <= end.lsn:
                if end.within > skipped:
                    yield transaction, skipped, min(end.within, number)
                return
            yield transaction, skipped, number
            skipped = 0

    def place_after(self, begin: Place, *, changes: int, until: Place | None, whole: bool) -> Place:
        """Return the place up to which an epoch that begins at `begin` may read.

        Raises the problem that stands there, if it is the next thing to read.
        """
        place, count, size = begin, 0, 0
        for transaction, start, stop in self.between(begin, until):
            ended = transaction.end > 0 and transaction.problem is None
            complete = ended and stop == transaction.number
            if whole and not complete:
                break
            left = changes - count
            taken = stop - start
            if not whole and taken > left:
                return Place(place.lsn, start + left) if left else place
            if whole and count and taken > left:
                return place
            if size > MAX_BYTES:
                return place
            count += taken
            size += transaction.size(start, stop)
            if not complete or (until is not None and transaction.end > until.lsn):
                place = Place(place.lsn, stop)
                break
            place = Place(transaction.end, 0)
        if place == begin:
            following = next(self.between(begin, None), None)
            if (
                following is not None
                and following[0].problem is not None
                and (whole or following[1] == following[2])
            ):
                raise following[0].problem
        return place


def _last_error(connection: Any) -> str:
    """Return why a stream has ended."""
    result = connection.get_result()
    return (result.get_error_message() if result is not None else "") or "the stream has ended"
