"""Ownership of a checkpoint: identity, history, owning run, lease.

A start claims a checkpoint by its identity, which counts from the first committed epoch; a run owns
it by having the highest number.

*History*: epochs of a fork have the same numbers as those of the checkpoint that it was copied
from.  So a record carries the digest of the record before it: the digest of one epoch identifies
all commits up to it, and two checkpoints agree on an epoch if and only if its digests are equal.

*Lease*: a second query is refused, and the first continues undisturbed.  Correctness does not
depend on it (the commit log's exclusive files decide).  On file systems with locks, the lease is a
lock, which the kernel releases with the process.  Elsewhere it is a numbered record, created
exclusively and renewed by a heartbeat counter.  A query that waits for the checkpoint watches the
record by its own clock: the lease is dead once the record has not changed for `EXPIRY_S`, and the
next number succeeds it.  Clocks of two machines are never compared.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import uuid4

import msgspec

from godwit.checkpoint.framing import encode_record, load_record, numbers_in
from godwit.checkpoint.records import (
    COMMITS,
    IDENTITY,
    LEASES,
    RUNS,
    FlowIdentity,
    RunRecord,
    lease_path,
    run_path,
)
from godwit.model.errors import (
    CheckpointInUseError,
    ConcurrentRunError,
    CorruptCheckpointError,
    GodwitError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.checkpoint.records import CommitRecord, EditRecord, Manifest
    from godwit.checkpoint.storage import CheckpointStorage, StorageLock

Relation = Literal["shared", "ahead", "diverged", "unknown"]
"""Relation of a point to a checkpoint: it is one of its epochs (``"shared"``), a later one of its
history (``"ahead"``), an epoch of another history (``"diverged"``), or one whose record has been
collected (``"unknown"``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """An epoch of a history, which targets store as the last one they got."""

    query_id: str  # the query that committed the epoch
    # id of its checkpoint's history; a copy of the checkpoint continues under another one
    history: str
    epoch: int  # number of the epoch
    digest: str  # of the epoch's record, and through it of all records before


def link_problems(identity: FlowIdentity, record: CommitRecord, *, digest: str) -> Iterator[str]:
    """Yield the reasons why a commit record does not continue this checkpoint's history.

    `digest`: digest of the preceding record in this checkpoint; empty if it is not known.
    """
    origin = identity.origin_of(record.epoch)
    writer = f"run {record.run_id!r} of query {record.query_id or 'unknown'} committed it"
    if (record.history, record.query_id) != (origin.history, origin.query_id):
        yield (
            f"it is of a fork: {writer}, in history {record.history}, and epoch {record.epoch} of "
            f"this checkpoint is of query {origin.query_id or 'unknown'}, history {origin.history}"
        )
    elif record.previous != digest and (digest or record.epoch == 0):
        yield (
            f"it is of a fork: {writer}, after another epoch {record.epoch - 1} than the one that "
            f"is here (digest {record.previous or 'none'}, not {digest or 'none'})"
        )


def is_taken_back(identity: FlowIdentity, record: CommitRecord) -> bool:
    """Return true if a record is of an epoch that a start has taken back."""
    return any(
        origin.taken_back and origin.history == record.history and origin.epoch < record.epoch
        for origin in identity.origins
    )


def key_group_problems(
    identity: FlowIdentity, manifest: Manifest, record: CommitRecord
) -> Iterator[str]:
    """Yield the problem if a manifest has another number of key groups than its epoch's record."""
    recorded = record.num_key_groups or identity.num_key_groups
    if manifest.num_key_groups != recorded:
        yield f"it has {manifest.num_key_groups} key groups, not {recorded}"


def edit_problems(
    identity: FlowIdentity, edit: EditRecord, *, record: str, flow_version: str, previous: str
) -> Iterator[str]:
    """Yield the reasons why an edit does not belong to this checkpoint in its present state.

    `record`, `flow_version`, `previous`: digests, in this checkpoint, of the records that the edit
    names; an empty `record` is not known.
    """
    if edit.history != identity.origin_of(edit.epoch).history or record not in {"", edit.record}:
        yield f"it was written after another epoch {edit.epoch} than the one that is here"
    elif edit.flow_digest != flow_version:
        yield f"it is about another flow version {edit.flow} than the one that is here"
    elif edit.previous != previous:
        yield "it follows another edit than the one that is here before it, or one that is gone"


def identity_differences(stored: FlowIdentity, today: FlowIdentity) -> Iterator[str]:
    """Yield the differences between the present identity and the stored one."""
    if stored.name != today.name:
        yield f"it belongs to flow {stored.name!r}, not {today.name!r}"
    if stored.query_id and today.query_id and stored.query_id != today.query_id:
        yield (
            f"it belongs to query {stored.query_id}, not {today.query_id}, so Spark's progress "
            f"and this state do not belong together"
        )


_RUNS_KEPT = 10


def stored_identity(storage: CheckpointStorage) -> FlowIdentity | None:
    """Return the identity of a checkpoint; ``None`` if there is no checkpoint."""
    if IDENTITY in storage.list(""):
        return load_record(storage, IDENTITY, FlowIdentity)
    if numbers_in(storage, COMMITS):
        raise CorruptCheckpointError(
            f"The file {IDENTITY!r} is missing from the checkpoint {storage.uri!r}, though epochs "
            f"are committed.",
            remedy="Restore it from a copy of the checkpoint.",
            file=IDENTITY,
            uri=storage.uri,
        )
    return None


def create_identity(storage: CheckpointStorage, identity: FlowIdentity) -> FlowIdentity:
    """Store the identity of a new checkpoint; return the stored one if there is one already."""
    stored = stored_identity(storage)
    if stored is not None:
        claimed = stored.num_key_groups, stored.name, stored.initial
        today = identity.num_key_groups, identity.name, identity.initial
        if claimed == today or numbers_in(storage, COMMITS):
            return stored
        # It is of a start that failed before its first epoch, which claims nothing.
        storage.delete(IDENTITY)
        identity = msgspec.structs.replace(identity, query_id=stored.query_id)
    if not identity.history:
        identity = msgspec.structs.replace(identity, history=uuid4().hex)
    # If another run is faster, its identity is the one to compare with.
    with suppress(FileExistsError):
        storage.create_exclusive(IDENTITY, encode_record(identity))
    return load_record(storage, IDENTITY, FlowIdentity)


def acquire_run(storage: CheckpointStorage, run_id: str) -> int:
    """Record a run under the next number, and return it: from then on the run is the owner."""
    numbers = numbers_in(storage, RUNS)
    run_number = max(numbers, default=-1) + 1
    try:
        record = encode_record(RunRecord(number=run_number, run_id=run_id))
        storage.create_exclusive(run_path(run_number), record)
    except FileExistsError as error:
        owner = load_record(storage, run_path(run_number), RunRecord)
        raise lost_ownership(storage, run_id, owner.run_id) from error
    for number in numbers[:-_RUNS_KEPT]:
        storage.delete(run_path(number))
    return run_number


def lost_ownership(storage: CheckpointStorage, run_id: str, other: str) -> ConcurrentRunError:
    """Return the error that the run `other` owns the checkpoint."""
    return ConcurrentRunError(
        f"Run {run_id!r} no longer owns the checkpoint {storage.uri!r}: run {other!r} has taken "
        f"it over.",
        remedy="Let only one query run on a checkpoint; stop this one, or start it again to take "
        "the checkpoint back.",
        uri=storage.uri,
        run_id=run_id,
        owner=other,
    )


EXPIRY_S: Final = 30.0
"""A lease by heartbeat is dead once it has not been renewed for this long."""

RENEWAL_S: Final = 5.0
_WATCH_S: Final = 1.0
_LOOK_S: Final = 0.05
_LOCK: Final = "lock"
_logger = logging.getLogger("godwit")


class LeaseOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Owner of a lease: run, process and host."""

    run_id: str  # of the run
    # host, pid: where its driver is
    host: str
    pid: int
    since: str  # when it began, in ISO 8601 by its own clock

    def __str__(self) -> str:
        return f"run {self.run_id!r} (process {self.pid} on {self.host!r}, since {self.since})"


class _Beat(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a lease by heartbeat, rewritten by its owner only."""

    owner: LeaseOwner
    beat: int
    released: bool = False


class LeaseSight(msgspec.Struct, frozen=True, kw_only=True):
    """State of a lease, as seen without waiting."""

    is_held: bool | None  # ``None`` if one look cannot show it
    owner: LeaseOwner | None = None  # present or last owner
    # number of the lease and of its last heartbeat, if it has one: held if that changes, dead once
    # it has not changed for `EXPIRY_S`
    beat: tuple[int, int] | None = None


def acquire_lease(
    storage: CheckpointStorage, run_id: str, *, pause: Callable[[float], None] = time.sleep
) -> CheckpointLease:
    """Acquire the lease on a checkpoint for a query.

    `pause`: waits for a number of seconds; called only if the lease is held, or its heartbeat may
    be dead. Raises `CheckpointInUseError` if another query, of this process or any other, holds it.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    owner = LeaseOwner(run_id=run_id, host=socket.gethostname(), pid=os.getpid(), since=now)
    note = msgspec.json.encode(owner)
    try:
        lock = storage.lock(_LOCK, note)
    except BlockingIOError:
        pause(_LOOK_S)  # an inspection has released the lock by then
        try:
            lock = storage.lock(_LOCK, note)
        except BlockingIOError as error:
            raise _in_use(storage, lease_owner(storage)) from error
    if lock is not None:
        return LockLease(owner, storage, lock)
    number, beat = _latest_lease(storage)
    if beat is not None and not beat.released:
        _wait_until_dead(storage, number, beat, pause)
    try:
        lease = HeartbeatLease(storage, number + 1, owner)
    except FileExistsError as error:
        raise _in_use(storage, lease_owner(storage)) from error
    for earlier in numbers_in(storage, LEASES):
        if earlier < number:
            storage.delete(lease_path(earlier))
    return lease


def lease_owner(storage: CheckpointStorage) -> LeaseOwner | None:
    """Return the owner of the lease, or its last owner; ``None`` if unknown."""
    return inspect_lease(storage).owner


def inspect_lease(storage: CheckpointStorage) -> LeaseSight:
    """Return, without waiting, the state of the lease on a checkpoint, and its owner."""
    try:
        if _LOCK in storage.list(""):
            try:
                lock = storage.lock(_LOCK, b"")
            except BlockingIOError:
                return LeaseSight(is_held=True, owner=_lock_owner(storage))
            if lock is not None:
                lock.release()
                return LeaseSight(is_held=False)
        number, beat = _latest_lease(storage)
    except GodwitError:
        return LeaseSight(is_held=None)
    if beat is None or beat.released:
        return LeaseSight(is_held=False)
    return LeaseSight(is_held=None, owner=beat.owner, beat=(number, beat.beat))


def _lock_owner(storage: CheckpointStorage) -> LeaseOwner | None:
    """Return the owner of the lease, read from the lock's file; ``None`` if it is unreadable."""
    with suppress(GodwitError, msgspec.DecodeError):
        return msgspec.json.decode(memoryview(storage.read(_LOCK)), type=LeaseOwner)
    return None


def break_lease(storage: CheckpointStorage) -> None:
    """Remove the lease of an owner that is certainly dead.

    If it is alive after all, it cannot commit once another run has begun.
    """
    storage.delete(_LOCK)
    number, beat = _latest_lease(storage)
    if beat is not None and not beat.released:
        released = msgspec.structs.replace(beat, released=True)
        with suppress(FileExistsError):  # another query has just succeeded it
            storage.create_exclusive(lease_path(number + 1), encode_record(released))


def _wait_until_dead(
    storage: CheckpointStorage, number: int, beat: _Beat, pause: Callable[[float], None]
) -> None:
    """Wait until a heartbeat has certainly stopped; raise as soon as it is renewed."""
    for _ in range(round(EXPIRY_S / _WATCH_S)):
        pause(_WATCH_S)
        latest, seen = _latest_lease(storage)
        if latest != number:
            raise _in_use(storage, None if seen is None else seen.owner)
        if seen is not None and seen.released:
            return
        if seen is None or seen.beat != beat.beat:
            raise _in_use(storage, beat.owner)


def _in_use(storage: CheckpointStorage, owner: LeaseOwner | None) -> CheckpointInUseError:
    """Return the error that another query uses the checkpoint."""
    return CheckpointInUseError(
        f"The checkpoint {storage.uri!r} is in use by {owner or 'another query'}.",
        remedy="Stop that query first, or start this one with a checkpoint of its own. If its "
        f"process is surely dead, run: godwit checkpoint unlock {storage.uri} --force",
        uri=storage.uri,
        owner=None if owner is None else msgspec.to_builtins(owner),
    )


def _lease_taken(storage: CheckpointStorage, lease: LeaseOwner) -> CheckpointInUseError:
    """Return the error that another query, owner of `lease`, took the lease from this query."""
    owner = lease_owner(storage)
    by = f"by {owner}" if owner is not None and owner != lease else "from outside"
    return CheckpointInUseError(
        f"The lease of this query on the checkpoint {storage.uri!r} was taken {by}.",
        remedy="This query ends; its committed epochs stay valid. `godwit checkpoint unlock` is "
        "for queries whose process is dead.",
        uri=storage.uri,
        owner=None if owner is None else msgspec.to_builtins(owner),
    )


class LockLease:
    """Lease by a lock of the file system."""

    def __init__(self, owner: LeaseOwner, storage: CheckpointStorage, lock: StorageLock) -> None:
        self.owner = owner
        self._storage, self._lock = storage, lock

    def check_held(self) -> None:
        """Raise `CheckpointInUseError` if the lease was taken from this query."""
        if not self._lock.is_held:
            raise _lease_taken(self._storage, self.owner)

    def release(self) -> None:
        """Release the lease; idempotent."""
        self._lock.release()


class HeartbeatLease:
    """Lease that a thread renews until it is released or the process dies."""

    def __init__(self, storage: CheckpointStorage, number: int, owner: LeaseOwner) -> None:
        self.owner = owner
        self._storage, self._number = storage, number
        self._beat = 0
        self._is_overtaken = False
        self._released = threading.Event()
        storage.create_exclusive(lease_path(number), self._encode_beat())
        self._thread = threading.Thread(
            target=self._run_thread, name="godwit-checkpoint-lease", daemon=True
        )
        self._thread.start()

    def check_held(self) -> None:
        """Raise `CheckpointInUseError` if the lease was taken from this query."""
        if self._is_overtaken:
            raise _lease_taken(self._storage, self.owner)

    def release(self) -> None:
        """Release the lease; idempotent."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        self._write_beat()

    def _run_thread(self) -> None:
        """Renew the lease periodically until it is released; runs on a thread."""
        while not self._released.wait(RENEWAL_S):
            self._beat += 1
            self._write_beat()
            self._check_for_later_lease()

    def _check_for_later_lease(self) -> None:
        """Mark this lease as lost if a later lease has replaced it."""
        with suppress(GodwitError, OSError):  # as of `_write_beat`
            numbers = numbers_in(self._storage, LEASES)
            self._is_overtaken = max(numbers, default=-1) > self._number

    def _write_beat(self) -> None:
        """Write the heartbeat to the lease's file; a failure is logged and tried again later."""
        # A store that is away for a moment is tried again at the next beat.
        try:
            self._storage.write_atomic(lease_path(self._number), self._encode_beat())
        except (GodwitError, OSError) as error:
            _logger.warning(
                "The lease on %r could not be renewed: %s. It is tried again every %.0f s, and is "
                "lost after %.0f s.",
                self._storage.uri,
                str(error).partition("\n")[0],
                RENEWAL_S,
                EXPIRY_S,
            )

    def _encode_beat(self) -> bytes:
        """Return the content of the lease's file: owner, heartbeat, and mark of a release."""
        released = self._released.is_set()
        return encode_record(_Beat(owner=self.owner, beat=self._beat, released=released))


CheckpointLease: TypeAlias = LockLease | HeartbeatLease


def _latest_lease(storage: CheckpointStorage) -> tuple[int, _Beat | None]:
    """Return number and content of the newest lease file; ``(-1, None)`` without one."""
    number = max(numbers_in(storage, LEASES), default=-1)
    return number, None if number < 0 else load_record(storage, lease_path(number), _Beat)
