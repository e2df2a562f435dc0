"""Epochs of a stopped checkpoint: named ones, starts from an earlier one, and edits of state.

*A kept epoch* has a record ``kept/<name>.rec``; the files that it needs are not collected until it
is released.  It is named while it is retained: its record is written, and afterwards the epoch must
still be retained.  A collection reads first which epochs are retained, and then which are kept, so
it has seen the name, or it began while the epoch was retained, and deletes none of its files.

*Taking epochs back.*  A start from an earlier epoch makes that epoch the last one.  Later records
stay of the former history, and the identity gets a new one that begins after this epoch, as that of
a copy does.

Invariants: the new identity, one file, takes the epochs back.  Before it, only the manifest of the
epoch has been written again; after it, no record of an epoch that was taken back counts, wherever
it is from: one that a former run was just committing is overwritten.  The rest (records set aside,
Spark's log put back) is done again by the next start, if a process died amid it.  A target that has
a later epoch differs from the new history, and is rolled back, or refused, as `on_divergence` says.

*Edits.*  A stopped checkpoint gets an epoch without input, with the given segments and snapshots
(`commit_edit`).  Only the last record has the rows that wait in loops, so the record of such an
epoch repeats them.  The output of the last epoch is not repeated: a sink without it would never get
it, so such an epoch is refused until the journal, or the user, confirms its delivery.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from godwit.checkpoint.blocks import BlockWriter, read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import encode_record, load_record, numbers_in
from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.ownership import acquire_run, stored_identity
from godwit.checkpoint.records import (
    BLOCKS,
    COMMITS,
    EDITS,
    FED_BACK,
    IDENTITY,
    MANIFESTS,
    EditRecord,
    KeptEpoch,
    Origin,
    SegmentRef,
    commit_path,
    edit_path,
    is_kept,
    kept_path,
    manifest_path,
)
from godwit.checkpoint.repair import RepairStep, execute_repair, plan_log_repair
from godwit.model.errors import CheckpointError, EpochCollectedError, GodwitError
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from godwit.checkpoint.records import (
        BatchRef,
        CommitRecord,
        FlowIdentity,
        OutputRef,
        SnapshotRef,
    )
    from godwit.checkpoint.storage import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenBack:
    """Epochs that a start has taken back."""

    asked: str  # what the start was given, as text
    epoch: int  # the last epoch that stays
    last: int  # the last one that was taken back; `epoch`: none, since an earlier start did it
    # the last committed epoch, if the start goes on after it, since an earlier one did the same
    goes_on_after: int | None = None


# -- kept epochs ------------------------------------------------------------------------------


def keep_epoch(storage: CheckpointStorage, name: str, epoch: int | None = None) -> KeptEpoch:
    """Keep an epoch, by default the last one, under a name; a query may run meanwhile.

    Raises `CheckpointError` if the name is not valid or in use, or the epoch is not retained.
    """
    if not is_kept(kept_path(name)) or name.isdecimal():
        raise CheckpointError(
            f"An epoch cannot be kept under the name {name!r}.",
            remedy="Give up to 80 letters, digits, '.', '_' and '-', not digits alone.",
        )
    log = CommitLog.open_read_only(storage)
    number = log.latest_epoch if epoch is None else epoch
    record = log.record(number)
    kept_epoch = KeptEpoch(
        name=name,
        epoch=number,
        first=_first_needed(log, record),
        record=log.digest(number),
        history=record.history,
        at_s=time.time(),
    )
    try:
        storage.create_exclusive(kept_path(name), encode_record(kept_epoch))
    except FileExistsError:
        raise CheckpointError(
            f"The checkpoint {storage.uri!r} keeps an epoch under the name {name!r} already.",
            remedy="Take another name, or release that epoch first: godwit checkpoint release "
            f"{storage.uri} {name}",
        ) from None
    log_now = CommitLog.open_read_only(storage)
    other_kept = {other.epoch for other in log_now.kept_epochs().values() if other.name != name}
    if number not in log_now.retained_epochs and number not in other_kept:
        storage.delete(kept_path(name))
        raise EpochCollectedError(
            f"Epoch {number} of the checkpoint {storage.uri!r} has ceased to be retained while it "
            "was to be kept.",
            remedy="Keep a later epoch, such as the last one.",
            epoch=number,
            uri=storage.uri,
        )
    return kept_epoch


def _first_needed(log: CommitLog, record: CommitRecord) -> int:
    """Return the first epoch from which on records have the last two batches of `record`."""
    first, batches = record.epoch, set[int]()
    for epoch in range(record.epoch, -1, -1):
        if epoch != record.epoch and commit_path(epoch) not in log.storage.list(COMMITS):
            break
        batch = log.load_record(epoch).last_batch
        if batch is None or not batch.of_spark:
            break
        first = epoch
        batches.add(batch.number)
        if len(batches) > 1:
            break
    return first


def release_epoch(storage: CheckpointStorage, name: str) -> KeptEpoch:
    """Keep an epoch no longer; its files are collected by the next run.

    Raises `CheckpointError` if none is kept under this name.
    """
    own = _kept_of(storage).get(name)
    if own is None:
        raise _no_such_name(storage, name)
    storage.delete(kept_path(name))
    return own


def _kept_of(storage: CheckpointStorage) -> dict[str, KeptEpoch]:
    """Return name → kept epoch, also those of a former history."""
    paths = [path for path in storage.list("kept") if is_kept(path)]
    return {own.name: own for own in (load_record(storage, path, KeptEpoch) for path in paths)}


def _no_such_name(storage: CheckpointStorage, name: str) -> CheckpointError:
    """Return the error that no epoch is kept under a name."""
    names = sorted(_kept_of(storage))
    return CheckpointError(
        f"The checkpoint {storage.uri!r} keeps no epoch under the name {name!r}.",
        remedy=f"{did_you_mean(name, names)}It keeps {listing(names) or 'none'}; "
        "godwit checkpoint keep CHECKPOINT NAME keeps the last one.",
    )


# -- a start from an earlier epoch ------------------------------------------------------------


def resolve_epoch(log: CommitLog, requested: int | str | datetime) -> int:
    """Return the epoch that a start names: a number, a kept epoch, or the last one by a time."""
    if isinstance(requested, int):
        return requested
    if isinstance(requested, str):
        kept_epoch = log.kept_epochs().get(requested)
        if kept_epoch is None:
            raise _no_such_name(log.storage, requested)
        return kept_epoch.epoch
    return _epoch_at(log, requested)


def _epoch_at(log: CommitLog, moment: datetime) -> int:
    """Return the last retained or kept epoch that was committed by `moment`."""
    kept_numbers = {kept_epoch.epoch for kept_epoch in log.kept_epochs().values()}
    times: dict[int, float] = {}
    for epoch in sorted({*log.retained_epochs, *kept_numbers}):
        record = log.load_record(epoch)
        for entry in JournalReader(log.storage).entries_of_run(record.run_id):
            event = entry.get("event")
            if not isinstance(event, dict) or event.get("kind") != "EpochCommitted":
                continue
            if event.get("epoch") == epoch:
                times[epoch] = float(event["at_s"])
    committed_by = [epoch for epoch, at_s in times.items() if at_s <= moment.timestamp()]
    if committed_by:
        return max(committed_by)
    first_time = min(times.values(), default=None)
    earliest_text = (
        "The journal has no time of any epoch that can be read."
        if first_time is None
        else f"The earliest that can be read was committed at "
        f"{datetime.fromtimestamp(first_time, UTC).isoformat(timespec='seconds')}."
    )
    raise CheckpointError(
        f"No epoch of the checkpoint {log.storage.uri!r} is known to be committed by "
        f"{moment.isoformat()}. {earliest_text}",
        remedy="Give a later time, or from_epoch= with one of the epochs that "
        "`godwit checkpoint inspect` lists.",
    )


def take_back(
    storage: CheckpointStorage,
    requested: int | str | datetime | None,
    run_id: str,
    *,
    repeat: bool = False,
) -> TakenBack | None:
    """Make an earlier epoch the last one; the caller holds the lease.

    `requested`: see `resolve_epoch`; ``None``: only end what an earlier start has begun. A start
    that asks for the same as the one before continues after the epochs that have been committed
    since: it is the same program, restarted. `repeat`: take these back too.

    Returns ``None`` if nothing was asked for. Raises `CheckpointError` if the epoch cannot be
    read, or Spark's log cannot be put back.
    """
    identity = stored_identity(storage)
    if identity is None:
        if requested is None:
            return None
        raise CheckpointError(
            f"There is no checkpoint at {storage.uri!r} with an epoch to start from.",
            remedy="Leave from_epoch= and as_of= out, or check the location.",
            uri=storage.uri,
        )
    last_origin = identity.origins[-1] if identity.origins else None
    if last_origin is not None and last_origin.taken_back:
        log = CommitLog.open_read_only(storage)
        if log.latest_epoch == last_origin.epoch:
            _finish_rollback(log)
        if requested is not None and not repeat and last_origin.taken_back == _text_of(requested):
            return TakenBack(
                asked=last_origin.taken_back,
                epoch=last_origin.epoch,
                last=last_origin.epoch,
                goes_on_after=log.latest_epoch,
            )
    if requested is None:
        return None
    log = CommitLog.open_read_only(storage)
    epoch = resolve_epoch(log, requested)
    if epoch == log.latest_epoch:
        return TakenBack(asked=_text_of(requested), epoch=epoch, last=epoch, goes_on_after=epoch)
    _check_can_go_back(log, epoch)
    acquire_run(storage, run_id)  # a former run commits nothing from here on
    log = CommitLog.open_read_only(storage)
    chains, floor = log.chains_at(epoch), log.retained_epochs.start
    manifest = replace(
        chains.manifest(), record=log.digest(epoch), retained_from=min(max(floor, 0), epoch)
    )
    if epoch < floor:
        manifest = replace(manifest, retained_from=epoch)
    storage.write_atomic(manifest_path(epoch), encode_record(manifest))
    new_identity = replace(
        identity, history=uuid4().hex, origins=_origins_after(identity, epoch, requested)
    )
    storage.write_atomic(IDENTITY, encode_record(new_identity))
    rollback = TakenBack(asked=_text_of(requested), epoch=epoch, last=log.latest_epoch)
    _finish_rollback(CommitLog.open_read_only(storage))
    return rollback


def _origins_after(
    identity: FlowIdentity, epoch: int, requested: int | str | datetime
) -> tuple[Origin, ...]:
    """Return the origins of a checkpoint that is taken back to an epoch.

    The first that ends with this epoch is that of its record. Others are histories with later
    epochs, all of which are taken back.
    """
    own_origin = Origin(query_id=identity.query_id, history=identity.history, epoch=epoch)
    ended_origins = [
        identity.origin_of(epoch),
        *(origin_ for origin_ in identity.origins if origin_.epoch >= epoch),
        own_origin,
    ]
    rolled_back = [
        replace(origin, epoch=epoch, taken_back=_text_of(requested)) for origin in ended_origins
    ]
    kept_origins = [origin for origin in identity.origins if origin.epoch < epoch]
    return (*kept_origins, *dict.fromkeys(rolled_back))


def _text_of(asked: int | str | datetime) -> str:
    """Return as text what a start was given."""
    return f"as of {asked.isoformat()}" if isinstance(asked, datetime) else str(asked)


def _check_can_go_back(log: CommitLog, epoch: int) -> None:
    """Raise `CheckpointError` if an epoch cannot become the last one."""
    chains = log.chains_at(epoch)
    later_kept = [
        kept_epoch for kept_epoch in log.kept_epochs().values() if kept_epoch.epoch > epoch
    ]
    if later_kept:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} cannot start from epoch {epoch}: it keeps later "
            f"epochs, {', '.join(map(str, later_kept))}.",
            remedy="Release them (godwit checkpoint release), or start a copy of the checkpoint "
            "from that epoch.",
        )
    files = {block.file for block in (*chains.blocks(), *log.record(epoch).blocks())} - {""}
    missing = files - {*log.storage.list(BLOCKS), *log.storage.list(COMMITS)}
    if missing:
        raise CheckpointError(
            f"Epoch {epoch} of the checkpoint {log.storage.uri!r} cannot be started from: "
            f"{min(missing)!r} is missing.",
            remedy="Start from another epoch, or restore the file from a copy.",
            file=min(missing),
        )
    impossible = [step for step in _log_steps(log, epoch) if step.action == "none"]
    if impossible:
        raise CheckpointError(
            f"Spark's log in the checkpoint {log.storage.uri!r} cannot be put back to epoch "
            f"{epoch}: {impossible[0].path}: {impossible[0].problem}",
            remedy="Start from a later epoch.",
            file=impossible[0].path,
        )


def _log_steps(log: CommitLog, epoch: int) -> tuple[RepairStep, ...]:
    """Return the steps that put Spark's log back to an epoch."""
    numbers = set(numbers_in(log.storage, COMMITS))
    first = epoch
    while first - 1 in numbers:
        first -= 1
    records = [log.load_record(number) for number in range(first, epoch + 1)]
    return plan_log_repair(log.storage, records)


def _finish_rollback(log: CommitLog) -> None:
    """Set aside the files of epochs that were taken back, and put Spark's log back."""
    storage, latest = log.storage, log.latest_epoch
    steps = list(_log_steps(log, latest))
    problem = "Its epoch was taken back."
    # A manifest without its record would keep the checkpoint from being opened.
    for directory, path_of in ((MANIFESTS, manifest_path), (COMMITS, commit_path)):
        steps += [
            RepairStep(path=path_of(number), problem=problem, action="set aside")
            for number in numbers_in(storage, directory)
            if number > latest
        ]
    for number in numbers_in(storage, EDITS):
        try:
            edit = load_record(storage, edit_path(number), EditRecord)
        except GodwitError:
            continue
        if edit.epoch > latest:
            steps.append(RepairStep(path=edit_path(number), problem=problem, action="set aside"))
    execute_repair(storage, steps)


def commit_edit(
    log: CommitLog,
    latest: CommitRecord,
    before: BatchRef | None,
    *,
    segments: Iterable[SegmentRef] = (),
    snapshots: Iterable[SnapshotRef] = (),
    # operator → key groups whose waiting rows are taken out of the wait buffer
    consumed: Mapping[str, list[int]] | None = None,
    delivered: bool,
    **fields: Any,
) -> None:
    """Commit an epoch without input that has the given segments and snapshots.

    `before`: last committed batch, from which sources continue. `delivered`: see `remove_key`.
    `fields`: other fields of the record, which are as in the last one otherwise. Raises
    `CheckpointError` if sinks may lack the last epoch.
    """
    with_rows = {ref.sink for ref in latest.outputs if ref.rows}
    # Its record has no rows for a sink, which is not the whole result of any.
    sinks = {
        name: msgspec.structs.replace(sink, complete=False)
        if sink.complete
        else msgspec.structs.replace(
            sink, before=latest.epoch if name in with_rows else sink.before
        )
        for name, sink in latest.sinks.items()
    }
    check_delivered(log, latest, delivered=delivered)
    log.commit(
        msgspec.structs.replace(
            latest,
            epoch=latest.epoch + 1,
            batch=None,
            before=before,
            segments=tuple(segments),
            snapshots=tuple(snapshots),
            outputs=_repeat_loop_rows(log, latest),
            consumed=dict(consumed or {}),
            sinks=sinks,
            **fields,
        )
    )


def check_delivered(log: CommitLog, latest: CommitRecord, *, delivered: bool) -> None:
    """Raise `CheckpointError` if sinks may lack the epoch `latest`; `delivered`: they do not."""
    lacking = [] if delivered else undelivered_sinks(log)
    if lacking:
        raise CheckpointError(
            f"Epoch {latest.epoch}, the last one, has rows for "
            f"{', '.join(map(repr, lacking))}, and nothing says that they were "
            "delivered. This change is an epoch of its own, and only the last epoch is delivered "
            "at a start.",
            remedy="Start the query once, which delivers them. Then, or if you see them at the "
            "target already, say so: --delivered.",
        )


def undelivered_sinks(log: CommitLog) -> list[str]:
    """Return the sinks to which the last epoch's rows may not have been delivered yet.

    They would never get these rows if another epoch were committed now. Sinks of whole results are
    left out, since their next rows replace these.
    """
    latest = log.latest
    if latest is None:
        return []
    with_rows = {ref.sink for ref in latest.outputs if ref.rows} & {*latest.sinks}
    changed_only = sorted(name for name in with_rows if not latest.sinks[name].complete)
    return [] if not changed_only or _was_delivered(log, latest) else changed_only


def _was_delivered(log: CommitLog, latest: CommitRecord) -> bool:
    """Return true if the journal shows that the epoch `latest` was delivered to all sinks.

    Only entries of the run that committed it count: a journal outlives epochs that a repair takes
    back.
    """
    entries = JournalReader(log.storage).entries_of_run(latest.run_id)
    values = (entry.get("event") for entry in entries)
    events = (event for event in values if isinstance(event, dict))
    return any(e.get("kind") == "EpochCommitted" and e.get("epoch") == latest.epoch for e in events)


def _repeat_loop_rows(log: CommitLog, latest: CommitRecord) -> tuple[OutputRef, ...]:
    """Copy the rows that feedback loops have yet to process into the next epoch's output."""
    refs = [ref for ref in latest.outputs if ref.rows and ref.sink.startswith(FED_BACK)]
    if not refs:
        return ()
    with BlockWriter(log.storage, epoch=latest.epoch + 1, name="loops") as writer:
        for ref in refs:
            writer.add(read_block(log.storage, ref.block))
        blocks = writer.close()
    return tuple(
        msgspec.structs.replace(ref, block=block) for ref, block in zip(refs, blocks, strict=True)
    )
