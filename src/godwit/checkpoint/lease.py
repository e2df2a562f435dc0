"""The lease on a checkpoint: a second query is refused, and the first goes on undisturbed.

Correctness does not rest on it (the commit log's exclusive files decide what counts); it keeps a
mistake from costing the query that runs.

Where the checkpoint lies on a file system with locks, the lease is a lock that the kernel lets go
of with the process, so what a crashed driver held can be taken at once.  Elsewhere it is a numbered
record, created exclusively and renewed by a beat that its owner counts.  Whoever wants the
checkpoint watches the record by a clock of its own: it is dead once it has stood still for
`EXPIRY_S`, and is succeeded by the next number, which again only one can create.  Clocks of two
machines are never compared.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from godwit.checkpoint.framing import decode_record, encode_record
from godwit.model.errors import CheckpointInUseError, GodwitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.checkpoint.storage.storage import CheckpointStorage, StorageLock

__all__ = [
    "EXPIRY_S",
    "RENEWAL_S",
    "CheckpointLease",
    "LeaseOwner",
    "LeaseSight",
    "acquire_lease",
    "break_lease",
    "lease_owner",
    "look_at_lease",
]

EXPIRY_S: Final = 30.0
"""A lease by heartbeat is dead once it has not been renewed for this long."""

RENEWAL_S: Final = 5.0
_WATCH_S: Final = 1.0
_LOOK_S: Final = 0.05
_LOCK: Final = "lock"
_LEASES: Final = "leases"
_logger = logging.getLogger("godwit")
_NUMBERED = re.compile(rf"{_LEASES}/(\d{{12}})\.rec")


class LeaseOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease."""

    run_id: str  # of the run
    # host, pid: where its driver is
    host: str
    pid: int
    since: str  # when it began, in ISO 8601 by its own clock

    def __str__(self) -> str:
        return f"run {self.run_id!r} (process {self.pid} on {self.host!r}, since {self.since})"


class _Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease by heartbeat says; only its owner rewrites it."""

    owner: LeaseOwner
    beat: int
    released: bool = False


class LeaseSight(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at a lease shows."""

    held: bool | None  # whether somebody holds it; ``None`` if one look cannot tell
    owner: LeaseOwner | None = None  # who does, or is said to
    # number of the lease and of its last heartbeat, where it is one: held if that moves, dead once
    # it has stood still for `EXPIRY_S`
    beat: tuple[int, int] | None = None


class CheckpointLease(Protocol):
    """A lease that is held until `release` or the death of the process."""

    owner: LeaseOwner

    def release(self) -> None:
        """Let the next one have the checkpoint at once; again does nothing."""

    def insist(self) -> None:
        """Make sure that nobody else has taken the lease.

        Raises `CheckpointInUseError` if somebody has.
        """


def acquire_lease(
    storage: CheckpointStorage, run_id: str, *, pause: Callable[[float], None] = time.sleep
) -> CheckpointLease:
    """Take the lease on a checkpoint that a query is to run on.

    `pause`: waits so many seconds; called only where the lease is held, or is a heartbeat that may
    be dead.
    Raises `CheckpointInUseError` if another query, of this process or any other, holds it.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    owner = LeaseOwner(run_id=run_id, host=socket.gethostname(), pid=os.getpid(), since=now)
    note = msgspec.json.encode(owner)
    try:
        lock = storage.lock(_LOCK, note)
    except BlockingIOError:
        pause(_LOOK_S)  # whoever only looks has let go by then
        try:
            lock = storage.lock(_LOCK, note)
        except BlockingIOError as error:
            raise _in_use(storage, lease_owner(storage)) from error
    if lock is not None:
        return _LockLease(owner, storage, lock)
    number, found = _latest(storage)
    if found is not None and not found.released:
        _watch(storage, number, found, pause)
    try:
        lease = _HeartbeatLease(storage, number + 1, owner)
    except FileExistsError as error:
        raise _in_use(storage, lease_owner(storage)) from error
    for earlier in _numbers(storage):
        if earlier < number:
            storage.delete(_path(earlier))
    return lease


def lease_owner(storage: CheckpointStorage) -> LeaseOwner | None:
    """Say who holds the lease (or, of a heartbeat, who did last), if that can be told."""
    return look_at_lease(storage).owner


def look_at_lease(storage: CheckpointStorage) -> LeaseSight:
    """Say whether the lease is held, without waiting for it."""
    try:
        if any(entry.path == _LOCK for entry in storage.list("")):
            try:
                lock = storage.lock(_LOCK, b"")
            except BlockingIOError:
                return LeaseSight(held=True, owner=_noted(storage))
            if lock is not None:
                lock.release()
                return LeaseSight(held=False)
        number, found = _latest(storage)
    except GodwitError:
        return LeaseSight(held=None)
    if found is None or found.released:
        return LeaseSight(held=False)
    return LeaseSight(held=None, owner=found.owner, beat=(number, found.beat))


def _noted(storage: CheckpointStorage) -> LeaseOwner | None:
    with suppress(GodwitError, msgspec.DecodeError):
        return msgspec.json.decode(memoryview(storage.read(_LOCK)), type=LeaseOwner)
    return None


def break_lease(storage: CheckpointStorage) -> None:
    """Take the lease from whoever has it; for owners that are surely dead.

    One that is alive after all commits nothing more once another run has begun.
    """
    storage.delete(_LOCK)
    number, found = _latest(storage)
    if found is not None and not found.released:
        released = msgspec.structs.replace(found, released=True)
        with suppress(FileExistsError):  # somebody else has just succeeded it
            storage.create_exclusive(_path(number + 1), encode_record(released))


def _watch(
    storage: CheckpointStorage, number: int, found: _Beat, pause: Callable[[float], None]
) -> None:
    """Wait until a heartbeat is surely dead; raise as soon as it proves to be alive."""
    for _ in range(round(EXPIRY_S / _WATCH_S)):
        pause(_WATCH_S)
        latest, seen = _latest(storage)
        if latest != number:
            raise _in_use(storage, None if seen is None else seen.owner)
        if seen is not None and seen.released:
            return
        if seen is None or seen.beat != found.beat:
            raise _in_use(storage, found.owner)


def _in_use(storage: CheckpointStorage, owner: LeaseOwner | None) -> CheckpointInUseError:
    return CheckpointInUseError(
        f"The checkpoint {storage.uri!r} is in use by {owner or 'another query'}.",
        remedy="Stop that query first, or start this one with a checkpoint of its own. If its "
        f"process is surely dead, run: godwit checkpoint unlock {storage.uri} --force",
        uri=storage.uri,
        owner=None if owner is None else msgspec.to_builtins(owner),
    )


def _taken(storage: CheckpointStorage, lease: LeaseOwner) -> CheckpointInUseError:
    owner = lease_owner(storage)
    by = f"by {owner}" if owner is not None and owner != lease else "from outside"
    return CheckpointInUseError(
        f"The lease of this query on the checkpoint {storage.uri!r} was taken {by}.",
        remedy="This query ends, and what it had committed counts. `godwit checkpoint unlock` is "
        "for queries whose process is dead.",
        uri=storage.uri,
        owner=None if owner is None else msgspec.to_builtins(owner),
    )


class _LockLease:
    def __init__(self, owner: LeaseOwner, storage: CheckpointStorage, lock: StorageLock) -> None:
        self.owner = owner
        self._storage, self._lock = storage, lock

    def insist(self) -> None:
        if not self._lock.held:
            raise _taken(self._storage, self.owner)

    def release(self) -> None:
        self._lock.release()


class _HeartbeatLease:
    def __init__(self, storage: CheckpointStorage, number: int, owner: LeaseOwner) -> None:
        self.owner = owner
        self._storage, self._number = storage, number
        self._beat = 0
        self._overtaken = False
        self._released = threading.Event()
        storage.create_exclusive(_path(number), self._record())
        self._thread = threading.Thread(
            target=self._renew, name="godwit-checkpoint-lease", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        self._write()

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL_S):
            self._beat += 1
            self._write()
            self._look()

    def _look(self) -> None:
        with suppress(GodwitError, OSError):  # as of `_write`
            self._overtaken = max(_numbers(self._storage), default=-1) > self._number

    def insist(self) -> None:
        if self._overtaken:
            raise _taken(self._storage, self.owner)

    def _write(self) -> None:
        # A store that is away for a moment is tried again at the next beat.
        try:
            self._storage.write_atomic(_path(self._number), self._record())
        except (GodwitError, OSError) as error:
            _logger.warning(
                "The lease on %r could not be renewed: %s. It is tried again every %.0f s, and is "
                "lost after %.0f s.",
                self._storage.uri,
                str(error).partition("\n")[0],
                RENEWAL_S,
                EXPIRY_S,
            )

    def _record(self) -> bytes:
        released = self._released.is_set()
        return encode_record(_Beat(owner=self.owner, beat=self._beat, released=released))


def _latest(storage: CheckpointStorage) -> tuple[int, _Beat | None]:
    """Give number and record of the last lease; ``(-1, None)`` if there never was one."""
    number = max(_numbers(storage), default=-1)
    if number < 0:
        return -1, None
    path = _path(number)
    return number, decode_record(memoryview(storage.read(path)), _Beat, path=path)


def _numbers(storage: CheckpointStorage) -> list[int]:
    matches = (_NUMBERED.fullmatch(entry.path) for entry in storage.list(_LEASES))
    return sorted(int(match[1]) for match in matches if match is not None)


def _path(number: int) -> str:
    return f"{_LEASES}/{number:012d}.rec"
