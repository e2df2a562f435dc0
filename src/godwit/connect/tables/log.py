"""Changes from a server's log: a stream, and a buffer of its transactions.

Transactions arrive in the order of their commits.  They stay in the buffer until the epoch that
read them is committed, so an epoch can be planned again.

A place in the stream is a position after a commit, a number that grows with each commit, and a
number of changes within the next transaction that has any.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from godwit.model.errors import SourceError

MAX_BYTES: Final = 64 << 20
"""Size of changes at which an epoch ends, and the buffer is not filled further."""

EVERYTHING: Final = 1 << 62
"""Number of changes that have no limit of size."""

_WAIT_S: Final = 1.0  # longest wait for the server to send what its log has


class LogPlace(NamedTuple):
    """A place in the stream."""

    lsn: int  # after a commit
    within: int  # changes of the next transaction


@dataclass(slots=True)
class Transaction:
    """Changes of a transaction to the tables of the source."""

    lsn: int  # of its commit
    time_us: int
    xid: Any  # id of the transaction
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


class LogStream(ABC):
    """The stream of a server's log, and its buffer.

    `translating`: context in which errors that are `lost` become the source's; its argument is the
    action that failed. `what`: name of the log, for errors.
    """

    lost: tuple[type[Exception], ...]  # errors of a lost connection

    def __init__(
        self,
        translating: Callable[[str], AbstractContextManager[None]],
        error: Callable[..., SourceError],
        what: str,
        *,
        timeout_s: float,
    ) -> None:
        self._translating, self._error, self._log_name = translating, error, what
        self._timeout_s = timeout_s
        self.transactions: list[Transaction] = []
        self._open_transaction: Transaction | None = None  # whose commit has not arrived
        self._buffer_begin = LogPlace(0, 0)  # the buffer has what follows
        self.reached = 0  # everything that was committed before is in the buffer
        self._failing_since_s: float | None = None

    # -- what a database adds ---------------------------------------------------------------------

    @property
    @abstractmethod
    def connected(self) -> bool:
        """True while a connection streams."""

    @abstractmethod
    def _start_stream(self, control: Any, begin: LogPlace) -> None:
        """Start streaming from `begin`; raise if the log does not have it."""

    @abstractmethod
    def _receive_message(self, *, wait: bool) -> bytes | None:
        """Return the next message; ``None`` if none has arrived, after a short time if `wait`."""

    @abstractmethod
    def _buffer_message(self, message: bytes) -> tuple[int, int]:
        """Add a message to the buffer; return the number and the size of its changes."""

    @abstractmethod
    def _end_of_log(self, control: Any) -> int:
        """Return the position up to which the log is written."""

    def close(self) -> None:
        """Close the connection, and forget the buffer."""
        self.transactions.clear()
        self._open_transaction, self.reached = None, 0

    def confirm(self, place: LogPlace) -> None:
        """Free the buffer up to `place`, which is committed."""
        while self.transactions and 0 < self.transactions[0].end <= place.lsn:
            self.transactions.pop(0)
        if self._buffer_begin < place:
            self._buffer_begin = place
            if place.within and self.transactions:
                self.transactions[0].free(place.within)

    # -- reading ----------------------------------------------------------------------------------

    def pump(
        self,
        connect: Callable[[], Any],
        begin: LogPlace,
        *,
        changes: int,
        until: LogPlace | None,
        whole: bool,
    ) -> bool:
        """Continue reading from `begin`, without waiting for changes not yet in the log.

        Return whether the stream is up to date with the log. `connect`: returns a connection for
        questions. `changes`: number that is enough.
        `until`: place that is far enough. `whole`: only transactions that have ended count.
        Without a connection to the server, nothing is read for a while, before the error is raised.
        """
        try:
            control = connect()
            if not self.connected or begin < self._buffer_begin or begin.lsn > self.reached:
                self._start_stream(control, begin)
            up_to_date = self._read_until(control, begin, changes, until, whole=whole)
        except self.lost as error:
            self.close()
            now_s = time.monotonic()
            if self._failing_since_s is None:
                self._failing_since_s = now_s
            if now_s - self._failing_since_s > self._timeout_s:
                with self._translating(f"cannot read {self._log_name}"):
                    raise error from None
            return False
        self._failing_since_s = None
        return up_to_date

    def read_ahead(self, connect: Callable[[], Any], begin: LogPlace) -> None:
        """Start the stream at `begin`, and buffer what has arrived, almost without waiting.

        The server decodes its log meanwhile, which may take long: it has changes of all tables.
        """
        size = sum(t.size(t.freed, t.number) for t in self.transactions)
        waited = False
        try:
            if not self.connected:
                self._start_stream(connect(), begin)
            while size < MAX_BYTES:
                message = self._receive_message(wait=waited)
                if message is not None:
                    size += self._buffer_message(message)[1]
                elif waited:
                    return
                waited = message is None
        except self.lost:  # `pump` tries again, and raises in the end
            self.close()

    def fill(
        self, connect: Callable[[], Any], begin: LogPlace, end: LogPlace, *, whole: bool
    ) -> None:
        """Read everything between two places; raise if that fails."""
        deadline_s, before = time.monotonic() + self._timeout_s, (0, 0)
        while not (begin >= self._buffer_begin and self._has_reached(end)):
            self.pump(connect, begin, changes=EVERYTHING, until=end, whole=whole)
            for transaction in self.transactions:
                if transaction.problem is not None and transaction.lsn < end.lsn:
                    raise transaction.problem
            now_s, arrived = time.monotonic(), (self.reached, len(self.transactions))
            if arrived != before:
                deadline_s, before = now_s + self._timeout_s, arrived
            elif now_s > deadline_s:
                raise self._error(
                    f"cannot read the rest of {self._log_name}, of which it has read a part",
                    "Start the query again: it continues from its checkpoint.",
                )

    def _read_until(
        self, control: Any, begin: LogPlace, changes: int, until: LogPlace | None, *, whole: bool
    ) -> bool:
        """Read until there is enough, or the end of the log is reached."""
        count = sum(stop - start for _, start, stop in self.between(begin, None))
        if begin.within:  # which may have to arrive again
            first = next(self.between(begin, None), None)
            count -= begin.within - min(begin.within, first[0].number if first else 0)
        size = sum(
            transaction.size(start, stop) for transaction, start, stop in self.between(begin, None)
        )
        end_of_log = None if until is None or until.within else until.lsn
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            has_enough = count >= changes or (size >= MAX_BYTES and changes < EVERYTHING)
            if has_enough and not (whole and self._open_transaction is not None):
                return False
            if until is not None and self._has_reached(until):
                return False
            if self.transactions and self.transactions[-1].problem is not None:
                return False
            message = self._receive_message(wait=False)
            if message is None:
                if count > 0 and self._open_transaction is None and until is None:
                    return False
                if end_of_log is None:
                    end_of_log = self._end_of_log(control)
                if self._open_transaction is None and self.reached >= end_of_log:
                    return True
                if time.monotonic() > deadline_s:
                    return False
                message = self._receive_message(wait=True)
            if message is not None:
                deadline_s = time.monotonic() + _WAIT_S
                number, taken = self._buffer_message(message)
                count, size = count + number, size + taken

    def _has_reached(self, place: LogPlace) -> bool:
        """Return whether everything before a place is in the buffer."""
        if not place.within or self.reached < place.lsn:
            return self.reached >= place.lsn
        following = next((t for t in self.transactions if not 0 < t.end <= place.lsn), None)
        return following is not None and following.number >= place.within

    # -- the buffer -------------------------------------------------------------------------------

    def between(
        self, begin: LogPlace, end: LogPlace | None
    ) -> Iterator[tuple[Transaction, int, int]]:
        """Yield transactions between two places, with the numbers of the changes to read."""
        skipped = begin.within
        for transaction in self.transactions:
            if 0 < transaction.end <= begin.lsn:
                continue
            number = max(skipped, transaction.number)  # some may not have arrived yet
            known = transaction.end or transaction.lsn + 1  # the end of a commit may not have come
            if end is not None and known > end.lsn:
                if end.within > skipped:
                    yield transaction, skipped, min(end.within, number)
                return
            yield transaction, skipped, number
            skipped = 0

    def place_after(
        self, begin: LogPlace, *, changes: int, until: LogPlace | None, whole: bool
    ) -> LogPlace:
        """Return the place up to which an epoch that begins at `begin` may read.

        Raises the problem that stands there, if it is the next thing to read.
        """
        place, count, size = begin, 0, 0
        for transaction, start, stop in self.between(begin, until):
            has_ended = transaction.end > 0 and transaction.problem is None
            is_complete = has_ended and stop == transaction.number
            if whole and not is_complete:
                break
            changes_left = changes - count
            num_changes = stop - start
            if not whole and num_changes > changes_left:
                return LogPlace(place.lsn, start + changes_left) if changes_left else place
            if whole and count and num_changes > changes_left:
                return place
            if size > MAX_BYTES:
                return place
            count += num_changes
            size += transaction.size(start, stop)
            if not is_complete or (until is not None and transaction.end > until.lsn):
                place = LogPlace(place.lsn, stop)
                break
            place = LogPlace(transaction.end, 0)
        if place == begin:
            next_transaction = next(self.between(begin, None), None)
            if (
                next_transaction is not None
                and next_transaction[0].problem is not None
                and (whole or next_transaction[1] == next_transaction[2])
            ):
                raise next_transaction[0].problem
        return place
