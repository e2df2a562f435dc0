"""Whose a checkpoint is: the flow that claims it, and the one run that may write to it.

A start claims a checkpoint by its identity, which counts from the first committed epoch; a run owns
it by having the highest number.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import msgspec

from godwit.checkpoint.framing import decode_record, digest_of, encode_record
from godwit.checkpoint.paths import COMMITS, IDENTITY, RUNS, number_in, numbered_path, run_path
from godwit.checkpoint.records import FlowIdentity, RunRecord
from godwit.model.errors import ConcurrentRunError, CorruptCheckpointError

if TYPE_CHECKING:
    from godwit.checkpoint.storage.storage import CheckpointStorage

__all__ = [
    "create_identity",
    "create_numbered",
    "load_record",
    "load_with_digest",
    "numbers_in",
    "overtaken",
    "stored_identity",
    "take_over",
]

_RUNS_KEPT = 10

_T = TypeVar("_T")


def load_record(storage: CheckpointStorage, path: str, kind: type[_T]) -> _T:
    """Read a record's file."""
    return load_with_digest(storage, path, kind)[0]


def load_with_digest(storage: CheckpointStorage, path: str, kind: type[_T]) -> tuple[_T, str]:
    """Read a record's file, and its digest."""
    data = memoryview(storage.read(path))
    return decode_record(data, kind, path=path), digest_of(data)


def numbers_in(storage: CheckpointStorage, directory: str) -> list[int]:
    """Numbers of the records in a directory, ascending."""
    numbers = (number_in(entry.path) for entry in storage.list(directory))
    return sorted(number for number in numbers if number is not None)


def create_numbered(
    storage: CheckpointStorage, directory: str, value: msgspec.Struct, *, after: int
) -> int:
    """Write a record under the next free number of a directory, later than `after`."""
    number = max([after, *numbers_in(storage, directory)]) + 1
    while True:
        try:
            storage.create_exclusive(numbered_path(directory, number), encode_record(value))
        except FileExistsError:  # of another start at this moment
            number += 1
        else:
            return number


def stored_identity(storage: CheckpointStorage) -> FlowIdentity | None:
    """Give the identity of a checkpoint; ``None`` if there is no checkpoint."""
    if any(entry.path == IDENTITY for entry in storage.list("")):
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
    """Give the stored identity, after storing `identity` if there is none."""
    stored = stored_identity(storage)
    if stored is not None:
        claimed = stored.num_key_groups, stored.name
        if claimed == (identity.num_key_groups, identity.name) or numbers_in(storage, COMMITS):
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


def take_over(storage: CheckpointStorage, run_id: str) -> RunRecord:
    """Take the next number, with which a run owns the checkpoint."""
    numbers = numbers_in(storage, RUNS)
    run = RunRecord(number=max(numbers, default=-1) + 1, run_id=run_id)
    try:
        storage.create_exclusive(run_path(run.number), encode_record(run))
    except FileExistsError as error:
        owner = load_record(storage, run_path(run.number), RunRecord)
        raise overtaken(storage, run_id, owner.run_id) from error
    for number in numbers[:-_RUNS_KEPT]:
        storage.delete(run_path(number))
    return run


def overtaken(storage: CheckpointStorage, run_id: str, other: str) -> ConcurrentRunError:
    """Make the error of a run that owns the checkpoint no longer."""
    return ConcurrentRunError(
        f"Run {run_id!r} no longer owns the checkpoint {storage.uri!r}: run {other!r} has taken "
        f"it over.",
        remedy="Let only one query run on a checkpoint; stop this one, or start it again to take "
        "the checkpoint back.",
        uri=storage.uri,
        run_id=run_id,
        owner=other,
    )
